from agent.neighbour_metrics import NeighbourFigures, neighbour_families
from bpf.layout import Counters

HELD = {
    "class": "slo-b",
    "held_ns": 62_000_000_000,
    "held_used_ns": 31_000_000_000,
    "held_back_ns": 20_000_000_000,
    "frozen_ns": 2_400_000_000,
    "freezes": 3,
    "idle": False,
    "late_thaws": 1,
    "longest_freeze_ns": 800_000_000,
}


def values(*neighbours: NeighbourFigures) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in neighbour_families(neighbours)
        for sample in family.samples
    }


def test_what_a_held_neighbour_got_and_lost_is_in_seconds() -> None:
    found = values(NeighbourFigures("batch", Counters(), held=HELD))
    assert found["sits_neighbour_held_seconds_total"] == 62
    assert found["sits_neighbour_held_cpu_seconds_total"] == 31
    assert found["sits_neighbour_held_back_cpu_seconds_total"] == 20
    assert found["sits_neighbour_frozen_seconds_total"] == 2.4
    assert found["sits_neighbour_freezes_total"] == 3
    assert found["sits_neighbour_longest_freeze_seconds"] == 0.8
    assert found["sits_neighbour_idle"] == 0


def test_one_that_is_made_idle_is_said() -> None:
    found = values(NeighbourFigures("batch", Counters(), held=HELD | {"idle": True}))
    assert found["sits_neighbour_idle"] == 1


def test_without_a_controller_nothing_is_said() -> None:
    assert values(NeighbourFigures("batch", Counters())) == {}
