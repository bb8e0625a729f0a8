"""What a start of the agent finds pinned, and what it makes of it."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from bpf.features import Features
from bpf.layout import Counters
from bpf.libbpf import Libbpf, LibbpfError
from bpf.loader import OBJECT_DIR, Plan, Programs, load, unload
from bpf.readers import CounterReader
from bpf.targets import TargetTable
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.scheduling import neighbour, worked
from tests.kernel.bpf.wire import Client, chunked, event, send
from tests.kernel.conftest import MakeGroup, TwinGroup

pytestmark = pytest.mark.kernel

MAX_TARGETS = 4


@dataclass(frozen=True, slots=True)
class Agent:
    """Starts the agent's kernel side again and again, on pins of its own."""

    lib: Libbpf
    features: Features
    pins: Path
    running: list[Programs]
    pinning: bool = True

    def start(self, objects: Path = OBJECT_DIR, max_targets: int = MAX_TARGETS) -> Programs:
        plan = Plan(self.features, max_targets, self.pins if self.pinning else None)
        programs = load(self.lib, plan, objects)
        self.running.append(programs)
        return programs

    def stop(self) -> None:
        """As a stopped agent does: let go of every descriptor."""
        for programs in self.running:
            programs.close()
        self.running.clear()


@pytest.fixture
def agent(lib: Libbpf, features: Features, bpffs: Path) -> Iterator[Agent]:
    agent = Agent(lib, features, bpffs / uuid4().hex, [])
    yield agent
    agent.stop()
    unload(agent.pins)


@pytest.fixture
def other_objects(tmp_path: Path) -> Path:
    """The objects of another version: the same programs in other files."""
    copy = tmp_path / "objects"
    shutil.copytree(OBJECT_DIR, copy)
    with (copy / "sched.bpf.o").open("ab") as file:
        file.write(b"another build")
    return copy


def kernel_ids(fds: dict[str, int]) -> dict[str, int]:
    """What the kernel numbers these by: it says so of every BPF descriptor."""
    found = {}
    for name, fd in fds.items():
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in {"map_id", "prog_id"}:
                found[name] = int(value)
    return found


def pinned(pins: Path) -> set[str]:
    return {str(path.relative_to(pins)) for path in pins.rglob("*") if not path.is_dir()}


def watch(programs: Programs, group: TwinGroup) -> int:
    table = TargetTable(programs)
    target = neighbour(group)
    assert table.apply([target]) == []
    return table.rows[target.name]


def counted(programs: Programs, row: int) -> Counters:
    maps = programs.maps
    reader = CounterReader(
        maps["counters"], maps["health"], programs.plan.max_targets, programs.cpus
    )
    try:
        return reader.counters(row)
    finally:
        reader.close()


def assert_counts(programs: Programs, row: int, group: TwinGroup) -> None:
    """That these programs see the group's tasks now."""
    before = counted(programs, row).waits
    worked(group, "wake", "20")
    assert counted(programs, row).waits >= before + 20


# adopting


def test_the_first_start_is_fresh_and_counts(agent: Agent, make_cgroup: MakeGroup) -> None:
    programs = agent.start()
    group = make_cgroup("group")
    assert programs.how == "fresh"
    assert_counts(programs, watch(programs, group), group)


def test_the_same_programs_are_adopted_as_they_are(agent: Agent) -> None:
    first = agent.start()
    ids = kernel_ids(first.maps), kernel_ids(first.programs)
    agent.stop()
    second = agent.start()
    assert second.how == "adopted"
    assert (kernel_ids(second.maps), kernel_ids(second.programs)) == ids


def test_counters_go_on_while_nobody_runs_and_after_adoption(
    agent: Agent, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    row = watch(first, group)
    assert_counts(first, row, group)
    waits = counted(first, row).waits
    agent.stop()
    worked(group, "wake", "20")
    second = agent.start()
    assert counted(second, row).waits >= waits + 20
    assert_counts(second, watch(second, group), group)


def test_two_agents_may_hold_the_same_programs(agent: Agent) -> None:
    first, second = agent.start(), agent.start()
    assert second.how == "adopted"
    assert kernel_ids(first.maps) == kernel_ids(second.maps)


# upgrading


def test_other_programs_keep_the_maps_and_their_counts(
    agent: Agent, make_cgroup: MakeGroup, other_objects: Path
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    row = watch(first, group)
    assert_counts(first, row, group)
    before, maps, programs = counted(first, row), kernel_ids(first.maps), first.programs
    old_programs = kernel_ids(programs)
    agent.stop()
    second = agent.start(other_objects)
    assert second.how == "kept"
    assert kernel_ids(second.maps) == maps
    assert not set(kernel_ids(second.programs).values()) & set(old_programs.values())
    after = counted(second, row)
    assert (after.waits, after.run_ns) == (before.waits, before.run_ns)


def test_other_programs_count_once_in_place_of_the_old(
    agent: Agent, make_cgroup: MakeGroup, other_objects: Path
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    watch(first, group)
    agent.stop()
    second = agent.start(other_objects)
    row = watch(second, group)
    before = counted(second, row).waits
    worked(group, "wake", "200")
    # twice the programs would count each wait twice
    assert 200 <= counted(second, row).waits - before < 400


def test_after_an_upgrade_the_new_programs_are_adopted(agent: Agent, other_objects: Path) -> None:
    agent.start()
    agent.stop()
    agent.start(other_objects)
    agent.stop()
    assert agent.start(other_objects).how == "adopted"


def assert_replaced(agent: Agent, first_maps: dict[str, int], second: Programs) -> None:
    assert second.how == "fresh"
    assert not set(kernel_ids(second.maps).values()) & set(first_maps.values())
    expected = {f"maps/{name}" for name in second.maps}
    expected |= {f"programs/{name}" for name in second.programs}
    found = pinned(agent.pins)
    assert found >= expected | {"layout"}
    assert {path for path in found if path.startswith(("maps/", "programs/"))} == expected


def test_pins_of_another_layout_are_replaced(
    agent: Agent, make_cgroup: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    row = watch(first, group)
    assert_counts(first, row, group)
    maps = kernel_ids(first.maps)
    agent.stop()
    monkeypatch.setattr("bpf.loader.LAYOUT_VERSION", 1_000)
    second = agent.start()
    assert_replaced(agent, maps, second)
    assert counted(second, row) == Counters()
    assert_counts(second, watch(second, group), group)


def test_maps_of_another_size_are_replaced(agent: Agent) -> None:
    first = agent.start()
    maps = kernel_ids(first.maps)
    agent.stop()
    second = agent.start(max_targets=2 * MAX_TARGETS)
    assert_replaced(agent, maps, second)
    assert second.map("targets").max_entries == 2 * MAX_TARGETS


def test_pins_nobody_knows_are_removed(agent: Agent) -> None:
    agent.start()
    agent.stop()
    (agent.pins / "layout").unlink()
    (agent.pins / "maps" / "targets").rename(agent.pins / "maps" / "of_long_ago")
    second = agent.start()
    assert second.how == "fresh"
    assert "maps/of_long_ago" not in pinned(agent.pins)


# half a set of pins


@pytest.mark.parametrize(
    "lost",
    [
        "links/switch_tasks",
        "links/stream_close",
        "programs/wakeup",
        "programs/stream_in",
        "maps/generation",
        "maps/events",
        "maps/counters",
        "maps/targets",
        "layout",
    ],
)
def test_half_a_set_of_pins_is_made_whole(
    agent: Agent, make_cgroup: MakeGroup, features: Features, lost: str
) -> None:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    whole = set(agent.start().maps)
    agent.stop()
    before = pinned(agent.pins)
    (agent.pins / lost).unlink()
    group = make_cgroup("group")
    second = agent.start()
    assert pinned(agent.pins) == before
    assert set(second.maps) == whole
    assert_counts(second, watch(second, group), group)
    second.attach(group.v2, group.stream_id)


# failing


def test_a_missing_object_is_named(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(LibbpfError, match=f"^could not open BPF object {tmp_path}/sched.bpf.o"):
        agent.start(tmp_path)


def test_a_missing_object_leaves_what_runs_alone(
    agent: Agent, make_cgroup: MakeGroup, tmp_path: Path
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    row = watch(first, group)
    before = pinned(agent.pins)
    with pytest.raises(LibbpfError):
        agent.start(tmp_path)
    assert pinned(agent.pins) == before
    assert_counts(first, row, group)


def test_an_object_that_is_none_leaves_what_runs_alone(
    agent: Agent, make_cgroup: MakeGroup, other_objects: Path
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    row = watch(first, group)
    before = pinned(agent.pins)
    (other_objects / "sched.bpf.o").write_bytes(b"not an object")
    with pytest.raises(LibbpfError, match=r"could not open BPF object .*sched\.bpf\.o"):
        agent.start(other_objects)
    assert pinned(agent.pins) == before
    assert_counts(first, row, group)


def test_pins_where_no_bpffs_is_are_refused(
    lib: Libbpf, features: Features, tmp_path: Path
) -> None:
    pins = tmp_path / "sits"
    with pytest.raises(LibbpfError, match=f"could not pin to {pins}: not on a BPF file system"):
        load(lib, Plan(features, MAX_TARGETS, pins))
    assert not pins.exists()


def spoil(path: Path) -> None:
    """An object that opens as any, but whose programs the verifier must refuse."""
    exit_instruction, no_instruction = b"\x95" + bytes(7), b"\xff" * 8
    path.write_bytes(path.read_bytes().replace(exit_instruction, no_instruction))


def test_programs_the_kernel_refuses_leave_what_runs_alone(
    agent: Agent, make_cgroup: MakeGroup, other_objects: Path
) -> None:
    group = make_cgroup("group")
    first = agent.start()
    row = watch(first, group)
    before = pinned(agent.pins)
    spoil(other_objects / "sched.bpf.o")
    with pytest.raises(LibbpfError, match=r"^could not load sched\.bpf\.o") as raised:
        agent.start(other_objects)
    assert "prog 'wakeup': BPF program load failed" in str(raised.value), "libbpf's own words"
    assert pinned(agent.pins) == before
    assert_counts(first, row, group)


def test_a_start_and_its_end_leave_no_descriptor_open(agent: Agent) -> None:
    before = open_descriptors()
    agent.start()
    agent.stop()
    assert open_descriptors() == before


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_failed_start_leaves_no_descriptor_open(agent: Agent, other_objects: Path) -> None:
    agent.start()
    before = open_descriptors()
    spoil(other_objects / "stream.bpf.o")
    with pytest.raises(LibbpfError):
        agent.start(other_objects)
    assert open_descriptors() == before


# ending


def still_counts(agent: Agent, group: TwinGroup, end: Callable[[Programs], None]) -> bool:
    """Whether the programs still count after `end`, by a counter map kept open beside them."""
    programs = agent.start()
    row = watch(programs, group)
    kept = dict(programs.maps, counters=os.dup(programs.maps["counters"]))
    kept["health"] = os.dup(programs.maps["health"])
    reader = CounterReader(kept["counters"], kept["health"], MAX_TARGETS, programs.cpus)
    worked(group, "wake", "20")
    assert reader.counters(row).waits >= 20
    end(programs)
    before = reader.counters(row)
    worked(group, "wake", "20")
    after = reader.counters(row)
    reader.close()
    os.close(kept["counters"])
    os.close(kept["health"])
    return after != before


def test_what_is_pinned_goes_on_when_the_agent_goes(agent: Agent, make_cgroup: MakeGroup) -> None:
    assert still_counts(agent, make_cgroup("group"), lambda _: agent.stop())


def test_unload_ends_the_programs_and_leaves_nothing(agent: Agent, make_cgroup: MakeGroup) -> None:
    def end(_: Programs) -> None:
        agent.stop()
        unload(agent.pins)

    assert not still_counts(agent, make_cgroup("group"), end)
    assert not agent.pins.exists()


def test_unload_where_nothing_is_pinned_is_no_error(agent: Agent) -> None:
    unload(agent.pins)


def test_without_pins_the_programs_go_with_their_holder(
    agent: Agent, make_cgroup: MakeGroup
) -> None:
    unpinned = replace(agent, pinning=False)
    assert not still_counts(unpinned, make_cgroup("group"), lambda _: unpinned.stop())
    assert not agent.pins.exists()


# cgroups


@pytest.fixture
def serving(
    agent: Agent, features: Features, make_cgroup: MakeGroup
) -> Iterator[tuple[TwinGroup, int]]:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    group = make_cgroup("engine")
    with server(group, "127.0.0.1") as (_, (port,)):
        yield group, port


def streams_seen(programs: Programs, group: TwinGroup, port: int) -> int:
    table = TargetTable(programs)
    table.apply([engine_target("engine", group, port)])
    before = counted(programs, table.rows["engine"]).ends_complete
    with Client.to(port) as client:
        client.run(send(chunked([event(1)])))
    return counted(programs, table.rows["engine"]).ends_complete - before


def test_an_attached_cgroup_is_followed_once_however_often_it_is_attached(
    agent: Agent, serving: tuple[TwinGroup, int]
) -> None:
    group, port = serving
    programs = agent.start()
    programs.attach(group.v2, group.stream_id)
    programs.attach(group.v2, group.stream_id)
    assert programs.attached_cgroups() == {group.stream_id}
    assert streams_seen(programs, group, port) == 1


def test_a_detached_cgroup_is_followed_no_more(
    agent: Agent, serving: tuple[TwinGroup, int]
) -> None:
    group, port = serving
    programs = agent.start()
    programs.attach(group.v2, group.stream_id)
    programs.detach(group.stream_id)
    assert programs.attached_cgroups() == set()
    assert streams_seen(programs, group, port) == 0
    assert not [path for path in pinned(agent.pins) if "@" in path]


def test_an_attached_cgroup_is_adopted_with_its_links(
    agent: Agent, serving: tuple[TwinGroup, int]
) -> None:
    group, port = serving
    agent.start().attach(group.v2, group.stream_id)
    agent.stop()
    programs = agent.start()
    assert programs.attached_cgroups() == {group.stream_id}
    assert streams_seen(programs, group, port) == 1


def test_an_adopted_cgroup_can_be_detached(agent: Agent, serving: tuple[TwinGroup, int]) -> None:
    group, port = serving
    agent.start().attach(group.v2, group.stream_id)
    agent.stop()
    programs = agent.start()
    programs.detach(group.stream_id)
    assert streams_seen(programs, group, port) == 0


def test_after_an_upgrade_a_cgroup_is_attached_anew_and_followed_once(
    agent: Agent, serving: tuple[TwinGroup, int], other_objects: Path
) -> None:
    group, port = serving
    agent.start().attach(group.v2, group.stream_id)
    agent.stop()
    programs = agent.start(other_objects)
    assert programs.attached_cgroups() == set()
    programs.attach(group.v2, group.stream_id)
    assert streams_seen(programs, group, port) == 1


def test_a_cgroup_that_is_gone_cannot_be_attached(agent: Agent, features: Features) -> None:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    with pytest.raises(FileNotFoundError):
        agent.start().attach(Path("/sys/fs/cgroup/sits-test-no-such-group"), 1)


def test_without_what_streams_need_delay_is_still_measured(
    agent: Agent, make_cgroup: MakeGroup
) -> None:
    lacking = replace(agent, features=replace(agent.features, loop=False))
    programs = lacking.start()
    group = make_cgroup("group")
    assert not programs.follows_streams
    assert_counts(programs, watch(programs, group), group)
