"""What came of a decision, from the kernel's counters; and that nobody invents it."""

import os
import signal
from typing import Any

import pytest

from .conftest import Node
from .groups import favoured
from .rig import Site, Sitsd
from .test_knobs import NO_NEIGHBOURS, budgets
from .traffic import long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel


def with_outcome(sitsd: Sitsd) -> list[dict[str, Any]]:
    return [decision for decision in sitsd.decisions() if decision["outcome"]]


def with_both(sitsd: Sitsd) -> list[dict[str, Any]]:
    """Those with the seconds before them too: one soon after the start has none."""
    return [decision for decision in with_outcome(sitsd) if decision["outcome"]["before"]]


def test_a_decision_gets_the_seconds_after_it_and_a_killed_controller_s_gets_none(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: budgets(sitsd))
            os.kill(sitsd.api.status()["controller"]["pid"], signal.SIGKILL)
            becomes(lambda: sitsd.api.status()["controller"]["restarts"] == 1)
            undone = {decision["id"] for decision in sitsd.decisions()}
            judged = becomes(lambda: with_both(sitsd))[-1]
        after = judged["outcome"]["after"]
        assert 5 <= after["seconds"] < 10
        assert after["chunks"] > after["gaps_over"]
        assert after["chunks"] >= after["gaps"] > 0
        assert judged["outcome"]["before"]["chunks"] > 0
        worst = sitsd.api.journal(limit=1000, order="worst")["decisions"]
        assert judged["id"] in {decision["id"] for decision in worst}
        assert all(d["outcome"] is None for d in sitsd.decisions() if d["id"] in undone)
