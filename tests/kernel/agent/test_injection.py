"""What an operator injects, through a real sitsd: it presses, is told everywhere, and ends."""

import json

import pytest

from .conftest import Node
from .rig import Site
from .waiting import becomes

pytestmark = pytest.mark.kernel


def test_an_injection_presses_is_told_while_it_lasts_and_ends_by_itself(
    node: Node, site: Site
) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        sitsd.api.inject("backpressure", 0.8, 600, "a drill")
        shown = sitsd.status(lambda status: status["injected"])["injected"]
        assert (shown["what"], shown["value"], shown["reason"]) == ("backpressure", 0.8, "a drill")
        assert 0 < shown["left_s"] <= 600
        sitsd.engine(lambda e: e["backpressure"] and e["backpressure"]["injected"] == 0.8)
        becomes(lambda: json.loads(sitsd.get("/page.json")[1])["sits"]["injected"])
        assert sitsd.events("injected")[0]["detail"]["reason"] == "a drill"
        # a later one takes its place
        sitsd.api.inject("backpressure", 0.5, 0.2, "and over")
        sitsd.engine(lambda e: e["backpressure"]["injected"] == 0)
        sitsd.status(lambda status: status["injected"] is None)
