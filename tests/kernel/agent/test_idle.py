"""Neighbours that burn the engine's core are made idle first of all: what is seen of it."""

import pytest

from controller.limits.change import IDLE_FILE

from .conftest import Node
from .groups import burning, limits
from .rig import Site
from .traffic import load
from .waiting import becomes

pytestmark = pytest.mark.kernel

CLASSES = """
[classes.night]
cpu_share = 0.5
[classes.day]
cpu_share = 0.5
idle = false
"""


@pytest.fixture
def before(node: Node) -> dict[str, str]:
    if not (node.group.cpu / IDLE_FILE).exists():
        pytest.skip("this kernel has no cpu.idle")
    return limits(*node.neighbours)


def test_those_that_burn_are_made_idle_and_get_their_weight_back(
    node: Node, site: Site, before: dict[str, str]
) -> None:
    site.write(node.targets(gap_ms=1), "control")
    with site.sitsd() as sitsd:
        with burning(*node.neighbours), load(node.engine, clients=2) as traffic:
            sitsd.status(lambda status: all(each["idle"] for each in status["neighbours"]))
            assert sitsd.metric("sits_neighbour_idle", target="n0") == 1
            (first,) = [
                each
                for each in sitsd.decisions()
                if any(change["target"] == "n0" for change in each["action"])
            ]
            assert first["cause"] == "neighbour_cpu"
            assert {
                (change["knob"], change["from"], change["to"])
                for change in first["action"]
                if change["target"] == "n0"
            } == {("cpu_weight", None, "idle")}
        assert traffic.failures == []
        assert sitsd.end() == 0
    assert limits(*node.neighbours) == before


def test_those_whose_class_says_so_are_not(node: Node, site: Site, before: dict[str, str]) -> None:
    text = node.targets(gap_ms=1)
    for number in range(len(node.neighbours)):
        table = f"[neighbours.n{number}]\n"
        text = text.replace(table, f'{table}class = "{"day" if number % 2 else "night"}"\n')
    site.write(CLASSES + text, "control")
    with site.sitsd() as sitsd, burning(*node.neighbours), load(node.engine, clients=2):
        status = sitsd.status(lambda status: any(each["idle"] for each in status["neighbours"]))
        idle = {each["name"]: each["idle"] for each in status["neighbours"]}
        assert not any(idle[f"n{number}"] for number in (1, 3, 5))
        becomes(lambda: (node.neighbours[0].cpu / IDLE_FILE).read_text() == "1\n")
        assert (node.neighbours[1].cpu / IDLE_FILE).read_text() == "0\n"
    becomes(lambda: limits(*node.neighbours) == before)
