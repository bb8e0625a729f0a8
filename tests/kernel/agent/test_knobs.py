"""The engine's batch retuned under a lease, from what one run shows of its steps."""

import os
import signal

import pytest

from .conftest import Node
from .groups import favoured
from .rig import Site, Sitsd, gone
from .traffic import at_start, knobs, long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel

NO_NEIGHBOURS = "[controller]\nneighbour_pressure = 1.0"
"""Whatever else this machine does meanwhile, it is not to be the cause."""


def lowered(node: Node) -> bool:
    """Whether sits holds a smaller token budget."""
    now = knobs(node.engine)
    smaller = now["values"]["max_batched_tokens"] < now["start"]["max_batched_tokens"]
    return bool(smaller and now["owner"] == "sits" and now["lease_ms_left"] > 0)


def budgets(sitsd: Sitsd) -> list[dict[str, object]]:
    """The decisions that changed the token budget, newest first."""
    return [
        decision
        for decision in sitsd.decisions()
        if any(change["knob"] == "max_batched_tokens" for change in decision["action"])
    ]


def test_a_batch_too_large_is_made_smaller_under_a_lease_and_observe_gives_it_back(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: lowered(node))
            decision = becomes(lambda: budgets(sitsd))[-1]
            assert decision["mode"] == "control"
            shown = sitsd.engine(
                lambda engine: (
                    (budget := engine["knobs"]["max_batched_tokens"])["held"]
                    and budget["value"] < budget["start"]
                )
            )
            assert shown["admin"]["state"] == "connected"
            becomes(lambda: budgets(sitsd)[-1]["ack"] == "applied")
            sitsd.api.set_mode("observe", "test")
            becomes(lambda: at_start(node.engine))
            sitsd.engine(lambda engine: not engine["knobs"]["max_batched_tokens"]["held"])


def test_shadow_decides_the_same_and_takes_no_lease(node: Node, site: Site, gap_ms: float) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "shadow")
    before = knobs(node.engine)
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            decision = becomes(lambda: budgets(sitsd))[-1]
            assert decision["ack"] == "shadow"
    assert knobs(node.engine) == before


def test_killed_with_a_lease_in_force_the_engine_goes_back_by_itself(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with favoured(node.group), site.sitsd() as sitsd, long_beside_short(node.engine):
        becomes(lambda: lowered(node))
        family = sitsd.family()
        for pid in (sitsd.api.status()["controller"]["pid"], sitsd.process.pid):
            os.kill(pid, signal.SIGKILL)
        becomes(lambda: at_start(node.engine), 3)
        becomes(lambda: gone(family))
        sitsd.kill()


def test_a_lease_lost_to_a_pause_is_taken_again_with_its_values(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: lowered(node))
            controller = sitsd.api.status()["controller"]["pid"]
            os.kill(controller, signal.SIGSTOP)
            try:
                becomes(lambda: at_start(node.engine))
            finally:
                os.kill(controller, signal.SIGCONT)
            becomes(lambda: lowered(node))
            assert sitsd.api.status()["controller"]["restarts"] == 0
    assert at_start(node.engine)
