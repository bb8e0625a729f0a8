"""What the kernel's tables are to hold for some targets."""

from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import NAME_BYTES, TargetKind
from bpf.targets import Target, _owners, carried_name


def engine(name: str, *cgroups: int, port: int = 8000) -> Target:
    return Target(
        name,
        TargetKind.ENGINE,
        stream_cgroups=frozenset(cgroups),
        ports=frozenset([port]),
    )


def test_engines_in_cgroups_of_their_own_may_have_one_port() -> None:
    owners = _owners([engine("a", 10, 11), engine("b", 20)], {"a": 1, "b": 2})
    assert owners["stream_cgroups"] == {10: 1, 11: 1, 20: 2}
    assert owners["ports"] == {8000 | 1 << 32: 1, 8000 | 2 << 32: 2}


def test_in_a_shared_cgroup_ports_tell_engines_apart() -> None:
    owners = _owners([engine("a", 10), engine("b", 10, port=8001)], {"a": 1, "b": 2})
    assert owners["stream_cgroups"] == {}
    assert owners["ports"] == {8000: 1, 8001: 2}


def test_an_engine_with_a_cgroup_of_its_own_and_a_shared_one_is_known_in_both() -> None:
    owners = _owners([engine("a", 10, 11), engine("b", 10, port=8001)], {"a": 1, "b": 2})
    assert owners["stream_cgroups"] == {11: 1}
    assert owners["ports"] == {8000: 1, 8000 | 1 << 32: 1, 8001: 2}


def test_an_engine_without_a_cgroup_is_known_by_its_port() -> None:
    assert _owners([engine("a")], {"a": 3})["ports"] == {8000: 3}


def test_what_runs_is_known_by_cgroup_and_process() -> None:
    target = Target(
        "a", TargetKind.NEIGHBOUR, cpu_cgroups=frozenset([5]), processes=frozenset([70])
    )
    owners = _owners([target], {"a": 4})
    assert (owners["cpu_cgroups"], owners["processes"]) == ({5: 4}, {70: 4})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200))
def test_a_row_has_room_for_what_it_carries_of_any_name(name: str) -> None:
    carried = carried_name(name)
    assert len(carried.encode()) < NAME_BYTES
    assert carried_name(carried) == carried
    assert (carried == name) == (len(name.encode()) < NAME_BYTES)


def test_long_names_that_begin_alike_are_carried_apart() -> None:
    names = ["n" * length + end for length in (62, 63, 64, 200) for end in "ab"]
    assert len({carried_name(name) for name in names}) == len(names)
