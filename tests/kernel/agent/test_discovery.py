"""Targets in cgroups of their own; tests/unit/agent has those without."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agent.discovery import Discovery, Found, Surroundings
from controller.limits.cgroup import read_hierarchies
from controller.policy import parse_policy
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import inside
from .waiting import becomes

pytestmark = pytest.mark.kernel

LISTEN = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)
FORK = "import os, sys; pid = os.fork(); pid and print(pid, flush=True); sys.stdin.read()"


@contextmanager
def process(group: TwinGroup, code: str, *words: str) -> Iterator[tuple[int, int]]:
    """A Python process in `group`, and the number it says first."""
    with subprocess.Popen(
        inside(group, sys.executable, "-c", code, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            yield running.pid, int(running.stdout.readline())
        finally:
            running.kill()


def below(group: TwinGroup, name: str | bytes) -> TwinGroup:
    """A child of a group; it goes with `remove`."""
    text = name if isinstance(name, str) else name.decode(errors="surrogateescape")
    child = TwinGroup(group.v2 / text, group.cpu / text)
    for directory in {child.v2, child.cpu}:
        directory.mkdir()
    return child


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def agent_pid() -> Iterator[int]:
    """A process that stands for the agent: this test's own are to be found."""
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        yield sleeping.pid
        sleeping.kill()


def look(policy: str, agent_pid: int) -> Surroundings:
    return Discovery(parse_policy(policy, "test"), read_hierarchies(), agent_pid).look()


def engine(match: str, agent_pid: int) -> Found:
    return look(f"[engines.chat]\n{match}\n", agent_pid).engines[0]


def path(group: TwinGroup) -> str:
    return f"/{group.cpu.name}"


def test_a_named_cgroup_is_the_target_with_all_below_it(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    group = make_cgroup("discovery")
    child = below(group, "worker")
    stack.callback(child.remove)
    first, port = stack.enter_context(process(group, LISTEN))
    second, other_port = stack.enter_context(process(child, LISTEN))
    found = engine(f'cgroup = "{path(group)}"', agent_pid)
    assert found.pids == {first, second}
    assert found.cgroup == path(group)
    assert found.attach == group.v2
    assert found.cpu_ids == {group.cpu_id, child.cpu_id}
    assert found.stream_ids == {group.stream_id, child.stream_id}
    assert found.processes == frozenset()
    assert found.ports == {port, other_port}
    assert found.detail == ""


@pytest.mark.parametrize("match", ["command", "port"])
def test_an_engine_alone_in_its_cgroup_is_watched_by_that(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int, match: str
) -> None:
    group = make_cgroup("discovery")
    pid, port = stack.enter_context(process(group, LISTEN, group.cpu.name))
    text = f'command = "{group.cpu.name}$"' if match == "command" else f"port = {port}"
    found = engine(text, agent_pid)
    assert found.pids == {pid}
    assert found.cgroup == path(group)
    assert found.cpu_ids == {group.cpu_id}
    assert (found.ports, found.detail) == (frozenset([port]), "")


def test_what_an_engine_forks_is_part_of_it_and_no_stranger_in_its_cgroup(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    group = make_cgroup("discovery")
    pid, child = stack.enter_context(process(group, FORK, group.cpu.name))
    found = engine(f'command = "{group.cpu.name}$"', agent_pid)
    assert found.pids == {pid, child}
    assert found.cgroup == path(group)


def test_one_that_shares_its_cgroup_is_watched_by_process_and_can_not_be_limited(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    group = make_cgroup("discovery")
    pid, _ = stack.enter_context(process(group, LISTEN, group.cpu.name))
    stack.enter_context(process(group, LISTEN, "a stranger"))
    found = engine(f'command = "{group.cpu.name}$"', agent_pid)
    assert found.pids == found.processes == {pid}
    assert found.cgroup is None
    assert found.cpu_ids == frozenset()
    assert found.attach == group.v2


def test_a_unit_is_found_by_the_name_of_its_cgroup_and_again_after_a_restart(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    parent = make_cgroup("discovery.slice")
    unit = f"{parent.cpu.name}.service"
    policy = parse_policy(f'[engines.chat]\nunit = "{unit}"\n', "test")
    discovery = Discovery(policy, read_hierarchies(), agent_pid)
    for _ in range(2):
        group = below(parent, unit)
        with process(group, LISTEN) as (pid, _):
            (found,) = discovery.look().engines
            assert found.pids == {pid}
            assert found.cgroup == f"{path(parent)}/{unit}"
        becomes(lambda: discovery.look().engines[0].detail == f"unit {unit} is not running")
        group.remove()


def test_an_engine_in_the_root_cgroup_is_told_what_that_costs(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    group = make_cgroup("discovery")
    pid, port = stack.enter_context(process(group, LISTEN))
    root = TwinGroup(group.v2.parent, group.cpu.parent)
    root.take_in(pid)
    found = engine(f"port = {port}", agent_pid)
    assert found.processes == {pid}
    assert found.attach is None
    assert "is in the root cgroup: its streams are not followed" in found.detail
    rooted = engine(f"port = {port}\n[agent]\nattach_root = true", agent_pid)
    assert (rooted.attach, rooted.detail) == (root.v2, "")


def test_an_engine_in_the_cpu_hierarchy_only_says_that_its_streams_are_not_followed(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    group = make_cgroup("discovery")
    if group.v2 == group.cpu:
        pytest.skip("cpu is on cgroup v2 here: there is one hierarchy")
    pid, _ = stack.enter_context(process(group, LISTEN))
    (group.v2.parent / "cgroup.procs").write_text(str(pid))
    group.v2.rmdir()
    found = engine(f'cgroup = "{path(group)}"', agent_pid)
    group.v2.mkdir()
    assert found.cpu_ids == {group.cpu_id}
    assert found.attach is None
    assert "its streams are not followed" in found.detail


def test_every_child_is_a_neighbour_of_its_own_but_empty_ones_and_engines_and_ourselves(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    parent = make_cgroup("discovery")
    children = {name: below(parent, name) for name in ("a", "b", "empty", "engine", "agent")}
    for child in children.values():
        stack.callback(child.remove)
    pids = {
        name: stack.enter_context(process(children[name], LISTEN))[0]
        for name in ("a", "b", "engine")
    }
    children["agent"].take_in(agent_pid)
    policy = (
        f'[engines.chat]\ncgroup = "{path(parent)}/engine"\n'
        f'[neighbours.n]\ncgroup = "{path(parent)}/*"\n'
    )
    found = look(policy, agent_pid).neighbours
    assert {each.name: each.pids for each in found} == {
        "n/a": {pids["a"]},
        "n/b": {pids["b"]},
    }
    assert [each.cgroup for each in found] == [f"{path(parent)}/{name}" for name in "ab"]
    assert [each.detail for each in found] == ["", ""]


def test_a_neighbour_that_holds_the_agent_is_left_alone(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int
) -> None:
    group = make_cgroup("discovery")
    stack.enter_context(process(group, LISTEN))
    group.take_in(agent_pid)
    (found,) = look(f'[neighbours.n]\ncgroup = "{path(group)}"\n', agent_pid).neighbours
    assert not found.present
    assert found.detail == "holds the agent itself: left alone"


@pytest.mark.parametrize("name", [b'a"b\\c', b"\xff\xfe", "ünï 中".encode(), b"x" * 200])
def test_a_child_of_any_name_has_one_that_can_be_shown(
    make_cgroup: MakeGroup, stack: ExitStack, agent_pid: int, name: bytes
) -> None:
    parent = make_cgroup("discovery")
    child = below(parent, name)
    stack.callback(child.remove)
    stack.enter_context(process(child, LISTEN))
    (found,) = look(f'[neighbours.n]\ncgroup = "{path(parent)}/*"\n', agent_pid).neighbours
    assert found.cpu_ids == {child.cpu_id}
    assert found.name.isprintable()
    found.name.encode()


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("x.slice", "x-y.slice", "job.service"), 'slice = "{}.slice"'),
        (("kubepods", "besteffort", "podab-1"), 'qos = "besteffort"'),
        (
            (
                "kubepods.slice",
                "kubepods-besteffort.slice",
                "kubepods-besteffort-podab_1.slice",
            ),
            'qos = "besteffort"',
        ),
    ],
)
def test_each_unit_of_a_slice_and_each_pod_of_a_class_is_a_neighbour_with_all_below_it(
    make_cgroup: MakeGroup,
    stack: ExitStack,
    agent_pid: int,
    names: tuple[str, ...],
    match: str,
) -> None:
    group = make_cgroup("discovery")
    own = group.cpu.name.removeprefix("sits-test-")
    at = group
    for name in (names[0].replace("x.", f"{own}."), *names[1:], "inner"):
        at = below(at, name)
        stack.callback(at.remove)
    pid, _ = stack.enter_context(process(at, LISTEN))
    found = look(f"[neighbours.n]\n{match.format(own)}", agent_pid).neighbours
    (mine,) = [each for each in found if pid in each.pids]
    unit = at.cpu.parent
    assert mine.cgroup == f"/{unit.relative_to(group.cpu.parent)}"
    assert mine.name == f"n/{'ab-1' if 'pod' in unit.name else unit.name}"
    assert mine.cpu_ids == {unit.stat().st_ino, at.cpu.stat().st_ino}
