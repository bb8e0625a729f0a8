"""Processes found without cgroups of their own; tests/kernel/agent has those with."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from agent.discovery import Discovery, Found, Surroundings
from controller.limits.cgroup import read_hierarchies
from controller.policy import parse_policy

SLEEP = "import sys, time; print('r', flush=True); time.sleep(60)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def word() -> str:
    """What nobody else has on a command line."""
    return f"sits-test-{uuid4().hex}"


@contextmanager
def process(code: str, *words: str) -> Iterator[tuple[int, str]]:
    """A Python process that said one line, which comes with its id; gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        try:
            yield running.pid, running.stdout.readline().strip()
        finally:
            running.stdin.close()
            if code == SLEEP:
                running.kill()


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process that stands for the agent where it must be none of this test's own."""
    with process(SLEEP) as (pid, _):
        yield pid


def look(policy: str, agent_pid: int) -> Surroundings:
    found = parse_policy(policy, "test")
    return Discovery(found, read_hierarchies(), agent_pid).look()


def engine(match: str, agent_pid: int, more: str = "") -> Found:
    return look(f"[engines.chat]\n{match}\n{more}", agent_pid).engines[0]


def test_an_engine_is_found_by_its_command_with_its_children(word: str, bystander: int) -> None:
    with process(PARENT, word) as (pid, child):
        found = engine(f'command = "{word}$"', bystander)
        assert found.pids == {pid, int(child)}


def test_one_that_shares_its_cgroup_is_watched_by_its_processes(word: str, bystander: int) -> None:
    with process(SLEEP, word) as (pid, _):
        found = engine(f'command = "{word}"', bystander)
        assert found.cgroup is None
        assert found.cpu_ids == frozenset()
        assert found.processes == {pid}


def test_an_engine_that_ended_is_found_no_more(word: str, bystander: int) -> None:
    with process(SLEEP, word):
        assert engine(f'command = "{word}"', bystander).present
    found = engine(f'command = "{word}"', bystander)
    assert not found.present
    assert found.detail == f"no command line matches {word}"


def test_an_engine_is_found_by_the_port_it_listens_on(bystander: int) -> None:
    listen = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with process(listen) as (pid, port):
        found = engine(f"port = {port}", bystander)
        assert found.pids == {pid}
        assert found.ports == {int(port)}
    assert engine(f"port = {port}", bystander).detail == f"nothing listens on port {port}"


def test_an_engine_found_by_its_command_has_the_ports_it_and_its_children_listen_on(
    word: str, bystander: int
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as second,
        process(SLEEP, word),
    ):
        mine = {first.getsockname()[1], second.getsockname()[1]}
        found = engine(f'command = "{sys.argv[0]}"', bystander)
        assert os.getpid() in found.pids
        assert mine <= found.ports


def test_the_agents_own_processes_are_never_a_target(word: str) -> None:
    with process(PARENT, word) as (pid, child):
        assert engine(f'command = "{word}"', pid).pids == frozenset()
        found = look(f'[neighbours.all]\ncommand = "{word}"', int(child)).neighbours[0]
        assert found.pids == {pid}


def test_a_neighbour_that_is_also_an_engine_is_left_alone(word: str, bystander: int) -> None:
    policy = f'[engines.chat]\ncommand = "{word}$"\n[neighbours.all]\ncommand = "{word}"\n'
    with process(SLEEP, "other", word), process(SLEEP, word, "-"):
        found = look(policy, bystander)
        assert found.engines[0].present
        assert not found.neighbours[0].present
        assert found.neighbours[0].detail == "is also an engine: left alone"


def test_a_neighbour_found_by_its_command_is_watched_by_its_processes(
    word: str, bystander: int
) -> None:
    with process(SLEEP, word) as (pid, _):
        (found,) = look(f'[neighbours.n]\ncommand = "{word}"', bystander).neighbours
        assert found.processes == {pid}
        assert found.cgroup is None


@pytest.mark.parametrize(
    ("match", "detail"),
    [
        ('cgroup = "/sits-test/none"', "no process in cgroup /sits-test/none"),
        ('unit = "sits-test-none.service"', "unit sits-test-none.service is not running"),
    ],
)
def test_what_is_not_there_is_said(match: str, detail: str) -> None:
    found = engine(match, os.getpid())
    assert (found.present, found.detail) == (False, detail)
