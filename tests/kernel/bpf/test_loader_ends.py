"""Starts that fail, what an end leaves behind, and the cgroups that programs are attached to."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bpf.features import Features
from bpf.libbpf import Libbpf, LibbpfError
from bpf.loader import Plan, Programs, load, unload
from bpf.readers import CounterReader
from bpf.targets import TargetTable
from tests.kernel.bpf.agents import (
    MAX_TARGETS,
    Agent,
    assert_counts,
    counted,
    pinned,
    watch,
)
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.scheduling import worked
from tests.kernel.bpf.wire import Client, chunked, event, send
from tests.kernel.conftest import MakeGroup, TwinGroup

pytestmark = pytest.mark.kernel


# failing


def test_a_missing_object_is_named(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(LibbpfError, match=f"^could not open BPF object {tmp_path}/socket.bpf.o"):
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
    """An object that opens as any, but whose programs the verifier must refuse.

    Code comes first in it; the same bytes further on would be no instruction.
    """
    exit_instruction, no_instruction = b"\x95" + bytes(7), b"\xff" * 8
    path.write_bytes(path.read_bytes().replace(exit_instruction, no_instruction, 1))


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
    assert "prog 'switch_tasks': BPF program load failed" in str(raised.value), "libbpf's own words"
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


def test_a_start_that_can_not_open_an_object_leaves_no_descriptor_open(
    agent: Agent, other_objects: Path
) -> None:
    agent.start()
    before = open_descriptors()
    (other_objects / "stream.bpf.o").write_bytes(b"not an object")
    with pytest.raises(LibbpfError, match=r"^could not open BPF object"):
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
    assert reader.counters(row).waits >= 10
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
