"""Run and waiting time by the names of a target's threads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpf.layout import MAX_ROLES, Counters, TargetKind
from bpf.readers import Role, RoleReader, read_culprits
from bpf.targets import Target
from tests.kernel.bpf.child import Child, child
from tests.kernel.bpf.scheduling import CPU, burning, cpu_engine, wait_for
from tests.kernel.bpf.watched import Watched
from tests.kernel.conftest import MakeGroup, TwinGroup

pytestmark = pytest.mark.kernel

BLAME_FROM_NS = 100_000
"""A shorter wait is nobody's fault, see bpf/sched.bpf.c."""

SPLIT = ("run_ns", "wait_ns", "waits", "wait_other_ns", "involuntary")


@pytest.fixture
def reader(watched: Watched) -> Iterator[RoleReader]:
    programs = watched.programs
    made = RoleReader(programs.map("role_names"), programs.maps["roles"], programs.cpus)
    yield made
    made.close()


@contextmanager
def threads(group: TwinGroup, *names: str) -> Iterator[Child]:
    with child("roles.py", *names, group=group, cpu=CPU) as started:
        started.tell()
        assert started.answer() == "started"
        # every name is given by now: let it be looked up again
        time.sleep(1.1)
        yield started


def of(reader: RoleReader, row: int) -> dict[str, Role]:
    found = [role for role in reader.read() if role.row == row]
    assert len({role.name for role in found}) == len(found)
    return {role.name: role for role in found}


def do(process: Child, *words: str) -> str:
    process.tell(" ".join(words))
    return process.answer()


def shares(
    watched: Watched, reader: RoleReader, row: int, process: Child, name: str, cpu_ms: int
) -> dict[str, float]:
    """What part of the target's run time each name has while only the thread `name` works."""
    process.wait_until_it_blocks()
    before, total_ns = of(reader, row), watched.reader.counters(row).run_ns
    do(process, "burn", name, str(cpu_ms))
    process.wait_until_it_blocks()
    total_ns = watched.reader.counters(row).run_ns - total_ns
    return {
        role.name: (role.run_ns - (before[role.name].run_ns if role.name in before else 0))
        / total_ns
        for role in of(reader, row).values()
    }


def test_each_name_has_the_time_of_its_thread(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("named")
    row = watched.watch(cpu_engine(group))
    with threads(group, "scheduler", "tokenizer", "idle") as process:
        for name in ("scheduler", "tokenizer"):
            found = shares(watched, reader, row, process, name, 60)
            assert found.pop(name) > 0.8
            assert sum(found.values()) < 0.2


def test_an_idle_task_never_waits_and_never_runs(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    # idle tasks, named swapper, are in the root cgroup, and one is runnable whenever its CPU sleeps
    root = make_cgroup("any").cpu.parent.stat().st_ino
    row = watched.watch(Target("root", TargetKind.ENGINE, cpu_cgroups=frozenset([root])))
    wait_for(lambda: watched.reader.counters(row).waits > 100)
    names = of(reader, row)
    assert names
    assert not [name for name in names if name.startswith("swapper")]


def test_names_have_the_waits_of_their_threads(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("waiting")
    row = watched.watch(cpu_engine(group))
    with threads(group, "hurt", "unhurt") as process:
        known = of(reader, row)
        with burning(make_cgroup("burning")):
            do(process, "burn", "hurt", "40")
        process.wait_until_it_blocks()
        found = of(reader, row)
    others = found["hurt"].wait_other_ns - (known["hurt"].wait_other_ns if "hurt" in known else 0)
    assert others > 1_000_000
    assert found["hurt"].involuntary > 0
    assert "unhurt" not in found or found["unhurt"].wait_other_ns < others


def test_all_names_together_are_the_target(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("summed")
    row = watched.watch(cpu_engine(group))
    with burning(make_cgroup("burning")), threads(group, "a", "b", "c") as process:
        for name in ("a", "b", "c"):
            do(process, "burn", name, "10")
    # the process is gone: nothing is counted any more
    counters = watched.reader.counters(row)
    roles = of(reader, row).values()
    assert len(roles) >= 3
    for field in SPLIT:
        assert sum(getattr(role, field) for role in roles) == getattr(counters, field), field
    assert counters.run_ns > 0


def test_a_renamed_thread_counts_under_its_new_name(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("renamed")
    row = watched.watch(cpu_engine(group))
    with threads(group, "before") as process:
        assert shares(watched, reader, row, process, "before", 30)["before"] > 0.8
        do(process, "rename", "before", "after")

        def is_known() -> bool:
            do(process, "burn", "before", "5")
            return "after" in of(reader, row)

        wait_for(is_known)
        found = shares(watched, reader, row, process, "before", 30)
    assert found["after"] > 0.8
    assert found["before"] == 0


def test_the_same_name_in_two_targets_is_two_roles(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    groups = make_cgroup("one"), make_cgroup("two")
    watched.watch(*map(cpu_engine, groups))
    first, second = (watched.table.rows[group.cpu.name] for group in groups)
    with threads(groups[0], "worker") as one, threads(groups[1], "worker") as two:
        assert shares(watched, reader, first, one, "worker", 30)["worker"] > 0.8
        settled = of(reader, first)["worker"].run_ns
        assert shares(watched, reader, second, two, "worker", 30)["worker"] > 0.8
        assert of(reader, first)["worker"].run_ns == settled


def test_more_names_than_there_are_rows_do_no_harm(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    group, other = make_cgroup("crowd"), make_cgroup("other")
    watched.watch(cpu_engine(group), cpu_engine(other))
    row, beside = (watched.table.rows[each.cpu.name] for each in (group, other))
    full = watched.reader.health().roles_full
    with threads(other, "known") as process, threads(group) as crowd:
        do(process, "burn", "known", "10")
        assert do(crowd, "crowd", str(MAX_ROLES + 50)) == "crowded"
        assert watched.reader.health().roles_full > full
        found = of(reader, row)
        # all rows are given out, each to one name
        assert MAX_ROLES // 2 < len(found) + len(of(reader, beside)) < MAX_ROLES
        # who came before has its row, the target counts on without one
        assert shares(watched, reader, beside, process, "known", 20)["known"] > 0.8
        run_ns = watched.reader.counters(row).run_ns
        assert run_ns > sum(role.run_ns for role in found.values())
    # the target goes, and its rows are free again
    watched.watch(cpu_engine(other))
    assert of(reader, row) == {}
    assert watched.programs.map("role_names").keys() != []
    watched.table.apply([])
    assert watched.programs.map("role_names").keys() == []
    assert watched.programs.map("role_rows").keys() == []


def test_a_row_starts_from_zero_for_its_next_target(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    old, new = make_cgroup("old"), make_cgroup("new")
    row = watched.watch(cpu_engine(old))
    with threads(old, "worker") as process:
        do(process, "burn", "worker", "100")
    before = of(reader, row)["worker"].run_ns
    assert watched.watch(cpu_engine(new)) == row
    assert of(reader, row) == {}
    assert watched.reader.counters(row) == Counters()
    with threads(new, "worker") as process:
        do(process, "burn", "worker", "5")
        process.wait_until_it_blocks()
        assert 0 < of(reader, row)["worker"].run_ns < before


def test_the_threads_and_culprits_of_neighbours_take_no_room_of_the_engines(
    watched: Watched, reader: RoleReader, make_cgroup: MakeGroup
) -> None:
    group, burner = make_cgroup("beside"), make_cgroup("burning")
    cgroups = frozenset([group.cpu_id])
    row = watched.watch(Target("beside", TargetKind.NEIGHBOUR, cpu_cgroups=cgroups))
    with burning(burner), threads(group, "worker") as process:
        wait_for(lambda: burnt_and_waited(watched, process, row))
    assert of(reader, row) == {}
    culprits = read_culprits(watched.programs.map("culprits"))
    assert [each for each in culprits if each.row == row] == []


def burnt_and_waited(watched: Watched, process: Child, row: int) -> bool:
    do(process, "burn", "worker", "20")
    return watched.reader.counters(row).wait_other_ns > 20 * BLAME_FROM_NS
