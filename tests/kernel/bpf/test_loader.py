"""What a start of the agent finds pinned, and what it makes of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from bpf.features import Features
from bpf.layout import Counters
from bpf.libbpf import Libbpf
from bpf.loader import _TRACING, Plan, Programs, load
from tests.kernel.bpf.agents import (
    MAX_TARGETS,
    Agent,
    assert_counts,
    counted,
    kernel_ids,
    pinned,
    watch,
)
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.scheduling import burnt, worked
from tests.kernel.bpf.watched import watching
from tests.kernel.bpf.wire import Client, chunked, event, send
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel


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
    assert counted(second, row).waits >= waits + 10
    assert_counts(second, watch(second, group), group)


def test_two_agents_may_hold_the_same_programs(agent: Agent) -> None:
    first, second = agent.start(), agent.start()
    assert second.how == "adopted"
    assert kernel_ids(first.maps) == kernel_ids(second.maps)


# kernels that lack something


def test_a_program_without_its_tracepoint_is_left_out_and_the_rest_works(
    lib: Libbpf, features: Features, make_cgroup: MakeGroup
) -> None:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    lacking = {"sock_send_length", "sock_recv_length", "tcp_send_reset", "tcp_retransmit_synack"}
    older = replace(features, tracepoints=features.tracepoints - lacking)
    whole = {name for programs in _TRACING.values() for name in programs}
    with watching(load(lib, Plan(older, MAX_TARGETS, None))) as watched:
        left_out = whole - watched.programs.programs.keys()
        assert left_out >= {"engine_write", "engine_read", "reset_sent", "synack"}
        assert watched.programs.follows_streams
        group = make_cgroup("engine")
        with server(group, "127.0.0.1") as (_, (port,)):
            row = watched.watch(engine_target("engine", group, port))
            watched.programs.attach(group.v2, group.stream_id)
            look = watched.look(row)
            with Client.to(port) as client:
                client.run(send(chunked([event(1), event(2)])))
            stream = look.end().stream
            counters = look.counters
            watched.programs.detach(group.stream_id)
    assert (stream.chunks, stream.events) == (2, 2)
    assert stream.write_ns > stream.request_ns
    assert (stream.read_ns, stream.last_write_ns, counters.writes) == (0, 0, 0)


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
    before = counted(second, row).run_ns
    with burnt(group, 200) as (_, kernels):
        run_ns = counted(second, row).run_ns - before
    # twice the programs would count it twice
    assert 0.5 * kernels.run_ns < run_ns < 1.5 * kernels.run_ns


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
        "links/socket_state",
        "programs/switch_tasks",
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
