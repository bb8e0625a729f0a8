"""Which row is whose: over changes, over restarts, and when there are more targets than rows."""

from collections.abc import Iterator

import pytest

from bpf.features import Features
from bpf.histogram import EMPTY
from bpf.layout import TARGET, Counters, TargetKind
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from bpf.readers import read_culprits
from bpf.targets import Target, TargetTable
from tests.kernel.bpf.conftest import MAX_TARGETS, Engine, engine_target, server
from tests.kernel.bpf.network import Network
from tests.kernel.bpf.scheduling import burning, cpu_engine, task, wait_for, worked
from tests.kernel.bpf.watched import Watched, watching
from tests.kernel.bpf.wire import LAST, Client, chunk, chunked, event, pause, post, send
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel


@pytest.fixture
def empty(lib: Libbpf, features: Features) -> Iterator[Watched]:
    """Programs of this test's own that watch nothing yet."""
    with watching(load(lib, Plan(features, MAX_TARGETS, None))) as made:
        yield made


def named(name: str, *cgroups: int) -> Target:
    return Target(name, TargetKind.NEIGHBOUR, cpu_cgroups=frozenset(cgroups))


def generation(watched: Watched) -> int:
    return int.from_bytes(watched.programs.map("generation").get(bytes(4)) or b"", "little")


def test_each_target_has_a_row_of_its_own_and_none_has_row_0(empty: Watched) -> None:
    names = [f"target{number}" for number in range(MAX_TARGETS - 1)]
    assert empty.table.apply(map(named, names)) == []
    assert sorted(empty.table.rows) == names
    assert sorted(empty.table.rows.values()) == list(range(1, MAX_TARGETS))


def test_targets_beyond_the_last_row_are_named(empty: Watched) -> None:
    names = [f"target{number}" for number in range(MAX_TARGETS + 1)]
    assert empty.table.apply(map(named, names)) == names[MAX_TARGETS - 1 :]
    assert sorted(empty.table.rows) == names[: MAX_TARGETS - 1]


def test_a_target_without_a_row_gets_one_when_another_goes(empty: Watched) -> None:
    names = [f"target{number}" for number in range(MAX_TARGETS)]
    empty.table.apply(map(named, names))
    assert empty.table.apply(map(named, names[1:])) == []
    assert names[-1] in empty.table.rows


def test_a_target_without_a_row_is_not_watched(empty: Watched, make_cgroup: MakeGroup) -> None:
    names = [f"target{number}" for number in range(MAX_TARGETS - 1)]
    group = make_cgroup("late")
    empty.table.apply([*map(named, names), named("late", group.cpu_id)])
    worked(group, "wake", "20")
    counted = [empty.reader.counters(row) for row in range(MAX_TARGETS)]
    assert counted == [Counters()] * MAX_TARGETS


def test_a_target_keeps_its_row_while_others_come_and_go(empty: Watched) -> None:
    empty.table.apply(map(named, ["a", "b", "c"]))
    row = empty.table.rows["b"]
    empty.table.apply(map(named, ["x", "b"]))
    empty.table.apply(map(named, ["b", "y", "z"]))
    assert empty.table.rows["b"] == row


def test_a_target_keeps_its_row_over_a_restart(empty: Watched) -> None:
    empty.table.apply(map(named, ["a", "b", "c"]))
    rows = dict(empty.table.rows)
    restarted = TargetTable(empty.programs)
    assert restarted.rows == rows
    restarted.apply(map(named, ["c", "new", "b"]))
    assert (restarted.rows["b"], restarted.rows["c"]) == (rows["b"], rows["c"])


def test_a_targets_counts_go_on_over_a_restart(empty: Watched, make_cgroup: MakeGroup) -> None:
    group = make_cgroup("lasting")
    row = empty.watch(named("lasting", group.cpu_id))
    worked(group, "wake", "20")
    before = empty.reader.counters(row)
    restarted = TargetTable(empty.programs)
    restarted.apply([named("lasting", group.cpu_id)])
    assert restarted.rows["lasting"] == row
    assert empty.reader.counters(row) == before


def test_a_target_that_went_while_nobody_ran_frees_its_row(empty: Watched) -> None:
    empty.table.apply(map(named, ["a", "b"]))
    restarted = TargetTable(empty.programs)
    restarted.apply([named("b")])
    assert set(restarted.rows) == {"b"}
    assert set(TargetTable(empty.programs).rows) == {"b"}


def test_the_longest_name_keeps_its_row_over_a_restart(empty: Watched) -> None:
    name = "n" * 63
    empty.table.apply(map(named, ["a", name]))
    assert TargetTable(empty.programs).rows == empty.table.rows


def test_names_too_long_for_a_row_keep_theirs_over_a_restart_each_its_own(
    empty: Watched, make_cgroup: MakeGroup
) -> None:
    group, other = make_cgroup("long"), make_cgroup("other")
    long, alike = (
        named("neighbours/" + "é" * 100 + end, each.cpu_id)
        for end, each in (("a", group), ("b", other))
    )
    row = empty.watch(long, alike)
    worked(group, "wake", "20")
    before, rows = empty.reader.counters(row), empty.table.rows
    restarted = TargetTable(empty.programs)
    restarted.apply([alike, long])
    assert restarted.rows == rows
    assert empty.reader.counters(row) == before != Counters()
    assert empty.reader.counters(rows[alike.name]) == Counters()


def test_a_name_of_any_language_keeps_its_row_over_a_restart(empty: Watched) -> None:
    empty.table.apply([named("größe-東京")])
    assert TargetTable(empty.programs).rows == {"größe-東京": 1}


def test_a_removed_target_leaves_nothing_to_the_next_in_its_row(
    empty: Watched, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("gone")
    row = empty.watch(cpu_engine(group))
    culprits = empty.programs.map("culprits")
    with burning(make_cgroup("burning")), burning(group):
        wait_for(lambda: any(each.row == row for each in read_culprits(culprits)))
        # counted into up to its very end
        assert empty.watch(named("next")) == row
        assert empty.reader.counters(row) == Counters()
        assert empty.histogram("wait_histograms", row) == EMPTY
        assert not [each for each in read_culprits(culprits) if each.row == row]


def test_a_cgroup_id_that_comes_again_counts_for_its_new_target_alone(
    empty: Watched, make_cgroup: MakeGroup
) -> None:
    """The kernel may give a new cgroup the id of one that is gone; tasks remember by id."""
    group = make_cgroup("first")
    cgroups = frozenset([group.cpu_id])
    old, new = (Target(name, TargetKind.NEIGHBOUR, cpu_cgroups=cgroups) for name in ("old", "new"))
    with task(group, "wake", "1000000") as started:
        row = empty.watch(old, named("between"))
        wait_for(lambda: empty.reader.counters(row).waits > 20)
        empty.watch(named("between"))
        with started.stopped():
            other = empty.watch(new, named("between"), named("last"))
            before = empty.reader.counters(other)
        wait_for(lambda: empty.reader.counters(other).waits > 20)
        assert before == Counters()
        assert empty.table.rows.keys() == {"new", "between", "last"}
        beside = [empty.table.rows[name] for name in ("between", "last")]
        assert [empty.reader.counters(each) for each in beside] == [Counters()] * 2


def test_a_removed_engines_streams_leave_nothing_to_the_next_in_its_row(engine: Engine) -> None:
    watched = engine.watched
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1), event(2)])))
    assert watched.reader.counters(engine.row).chunks > 0
    watched.watch(named("next"))
    assert watched.table.rows["next"] == engine.row
    assert watched.reader.counters(engine.row) == Counters()
    for name in ("ttft_histograms", "gap_histograms"):
        assert watched.histogram(name, engine.row) == EMPTY


def test_a_stream_under_way_counts_no_more_when_its_engine_is_removed(engine: Engine) -> None:
    watched = engine.watched
    engine.watch()
    begun, rest = chunked([event(1)], end=b""), chunk(event(2)) + LAST
    with Client.to(engine.port) as client:
        client.write(post([send(begun), pause(0.2), send(rest)]))
        client.read(len(begun))
        watched.watch(named("next"))
        client.read(len(rest))
    assert watched.table.rows["next"] == engine.row
    assert watched.reader.counters(engine.row) == Counters()


def test_a_kept_connection_is_counted_for_the_ports_new_owner(engine: Engine) -> None:
    watched = engine.watched
    engine.watch()
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1)])))
        heir = engine_target("heir", engine.group, engine.port)
        watched.watch(named("another"), heir)
        row = watched.table.rows["heir"]
        assert row != engine.row
        client.run(send(chunked([event(1), event(2)])))
    assert watched.reader.counters(row).chunks == 2


def test_a_stream_under_way_goes_on_when_other_targets_change(engine: Engine) -> None:
    watched = engine.watched
    engine.watch()
    before = watched.reader.counters(engine.row).chunks
    whole = chunked([event(1), event(2)])
    with Client.to(engine.port) as client:
        client.write(post([send(whole[:-20]), pause(0.2), send(whole[-20:])]))
        client.read(len(whole) - 20)
        watched.watch(engine_target("engine", engine.group, engine.port), named("new", 12345))
        client.read(20)
    assert watched.reader.counters(engine.row).chunks - before == 2


def test_only_a_change_of_who_is_watched_makes_the_kernel_look_again(empty: Watched) -> None:
    empty.watch(named("a", 1, 2))
    before = generation(empty)
    empty.watch(named("a", 1, 2))
    assert generation(empty) == before
    empty.watch(named("a", 1))
    assert generation(empty) == before + 1


def test_keys_that_are_wanted_no_more_are_removed(empty: Watched) -> None:
    empty.watch(named("a", 1, 2, 3))
    empty.watch(named("a", 3), named("b", 4))
    cgroups = empty.programs.map("cpu_cgroups")
    owners = {
        int.from_bytes(key, "little"): int.from_bytes(cgroups.get(key) or b"", "little")
        for key in cgroups.keys()  # noqa: SIM118 - a map of the kernel's, not a dict
    }
    assert owners == {3: empty.table.rows["a"], 4: empty.table.rows["b"]}


def test_thresholds_are_told_and_can_be_changed(empty: Watched) -> None:
    thresholds = empty.programs.map("targets")
    for wanted in ((1, 2, 3, 4), (5, 6, 7, 8)):
        row = empty.watch(Target("a", TargetKind.ENGINE, *wanted))
        told = TARGET.unpack(thresholds.get(row.to_bytes(4, "little")) or b"")
        assert told[:5] == (*wanted, TargetKind.ENGINE)


def test_engines_in_networks_of_their_own_may_listen_on_one_port(
    empty: Watched, features: Features, make_cgroup: MakeGroup
) -> None:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    alone = ("unshare", "--net")
    groups = make_cgroup("one"), make_cgroup("other")
    with (
        server(groups[0], "127.0.0.1:8000", wrapper=alone) as (one, (port,)),
        server(groups[1], "127.0.0.1:8000", wrapper=alone) as (other, (same,)),
    ):
        assert port == same
        targets = [engine_target(group.v2.name, group, port) for group in groups]
        empty.watch(*targets)
        for group in groups:
            empty.programs.attach(group.v2, group.stream_id)
        rows = [empty.table.rows[target.name] for target in targets]
        look = empty.look(rows[0])
        for process, count in ((one, 1), (other, 2)):
            with Network(process.pid).connect(port) as client:
                client.run(send(chunked([event(1)] * count)))
        ends = look.ends(2)
        assert [(end.stream.slot, end.stream.chunks) for end in ends] == [
            (rows[0], 1),
            (rows[1], 2),
        ]


def test_engines_that_share_a_cgroup_are_told_apart_by_port(
    empty: Watched, features: Features, make_cgroup: MakeGroup
) -> None:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    group = make_cgroup("shared")
    with server(group, "127.0.0.1", "127.0.0.1") as (_, ports):
        targets = [engine_target(f"engine{port}", group, port) for port in ports]
        empty.watch(*targets)
        empty.programs.attach(group.v2, group.stream_id)
        look = empty.look(1)
        for port in ports:
            with Client.to(port) as client:
                client.run(send(chunked([event(1)])))
        slots = [end.stream.slot for end in look.ends(2)]
    assert slots == [empty.table.rows[target.name] for target in targets]
