"""What each mode does, and does not do, while neighbours take the engine's CPU."""

from pathlib import Path

import pytest

from .conftest import Node
from .groups import burning, limits
from .rig import Site, Sitsd
from .traffic import at_start, knobs, load
from .waiting import becomes
from .writes import watching_writes

pytestmark = pytest.mark.kernel

GAP_MS = 20
"""Six busy loops beside it make the engine wait longer than this again and again."""


def test_a_write_to_a_cgroup_file_is_seen(node: Node) -> None:
    weight = next(Path(file) for file in limits(node.group) if "weight" in file or "shares" in file)
    with watching_writes([weight]) as writes:
        weight.write_text(weight.read_text())
        assert writes.seen() == 1
        assert writes.seen() == 0


def decided(sitsd: Sitsd) -> set[str]:
    """The knobs that decisions are about."""
    return {each["knob"] for decision in sitsd.decisions() for each in decision["action"]}


@pytest.mark.parametrize("mode", ["observe", "shadow"])
def test_observe_and_shadow_write_nothing_and_only_shadow_decides(
    node: Node, site: Site, mode: str
) -> None:
    site.write(node.targets(ttft_ms=GAP_MS, gap_ms=GAP_MS), mode)
    before = knobs(node.engine)
    with watching_writes(limits(node.group, *node.neighbours)) as writes:
        with site.sitsd() as sitsd:
            sitsd.following()
            with burning(*node.neighbours), load(node.engine) as traffic:
                sitsd.engine(lambda engine: engine["cause"] == "neighbour_cpu")
                if mode == "shadow":
                    becomes(lambda: "cpu_weight" in decided(sitsd))
                    assert {(each["ack"], each["mode"]) for each in sitsd.decisions()} == {
                        ("shadow", "shadow")
                    }
                traffic.grows_to(len(traffic.seen) + 4)
            if mode == "observe":
                assert sitsd.decisions() == []
            assert not site.undo.exists()
        assert writes.seen() == 0
    assert knobs(node.engine) == before


def test_control_raises_the_weight_and_observe_gives_it_back(node: Node, site: Site) -> None:
    before = limits(node.group, *node.neighbours)
    site.write(node.targets(ttft_ms=GAP_MS, gap_ms=GAP_MS))
    with (
        site.sitsd() as sitsd,
        burning(*node.neighbours),
        load(node.engine),
    ):
        base = sitsd.engine(lambda engine: engine["cpu_weight"])["cpu_weight"]["base"]
        sitsd.api.set_mode("control", "test")
        # while the controller is silent it is not known
        raised = sitsd.engine(lambda e: e["cpu_weight"] and e["cpu_weight"]["value"] > base)
        assert becomes(lambda: limits(node.group) != {k: before[k] for k in limits(node.group)})
        assert raised["cpu_weight"]["base"] == base
        (decision, *_) = sitsd.decisions()[::-1]
        assert (decision["mode"], decision["cause"]) == ("control", "neighbour_cpu")
        becomes(lambda: sitsd.decisions()[-1]["ack"] == "applied")
        sitsd.api.set_mode("observe", "test")
        becomes(lambda: limits(node.group, *node.neighbours) == before)
        becomes(lambda: at_start(node.engine))
        modes = becomes(lambda: (found := sitsd.events("mode"))[1:] and found)
        assert [event["detail"]["reason"] for event in modes] == ["test", "test"]
        assert not site.undo.exists()
