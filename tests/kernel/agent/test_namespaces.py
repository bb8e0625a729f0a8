"""Sockets of an engine in a network namespace of its own, as containers have."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest

from agent.discovery import Found
from agent.listening import listening_ports
from agent.sockets import Sockets
from bpf.libbpf import Libbpf

BACKLOG: Final = 4
PENDING: Final = 3

_INSIDE: Final = f"""
import socket, subprocess, time
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listener = socket.create_server(("127.0.0.1", 0), backlog={BACKLOG})
clients = [socket.create_connection(listener.getsockname()) for _ in range({PENDING} + 1)]
accepted = listener.accept()
print(listener.getsockname()[1], flush=True)
time.sleep(3600)
"""


@contextmanager
def engine_in_its_own() -> Iterator[tuple[int, int]]:
    """Process id and port of one that accepted one connection of four."""
    command = ["unshare", "--net", "--", sys.executable, "-c", _INSIDE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture
def sockets(lib: Libbpf) -> Iterator[Sockets]:
    """`lib` skips where there are no privileges."""
    made = Sockets()
    yield made
    made.close()


def open_files() -> int:
    return psutil.Process().num_fds()


def test_an_engine_in_a_namespace_of_its_own_is_read_there_and_nothing_stays_open(
    sockets: Sockets,
) -> None:
    before, ours = open_files(), Path("/proc/self/ns/net").stat().st_ino
    with engine_in_its_own() as (pid, port):
        inside = open_files()
        for _ in range(5):
            sockets.watch([Found("e", frozenset({pid}), ports=frozenset({port}))])
            found = sockets.look("e")
            assert (found.backlog, found.backlog_limit) == (PENDING, BACKLOG)
            assert len(found.connections) == len(found.seeded) == 1
            assert found.detail == ""
        assert open_files() == inside + 1
        # the thread that went there is gone, and this one never left
        assert Path("/proc/thread-self/ns/net").stat().st_ino == ours
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0
    sockets.watch([])
    assert open_files() == before


@pytest.mark.usefixtures("lib")
def test_the_port_of_an_engine_in_a_namespace_of_its_own_is_found() -> None:
    with engine_in_its_own() as (pid, port):
        assert listening_ports(pid) == {port}


def test_the_same_port_in_two_namespaces_is_two_engines(sockets: Sockets) -> None:
    with (
        engine_in_its_own() as (pid, port),
        socket.create_server(("127.0.0.1", port), backlog=8) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        ours = Found("ours", frozenset({psutil.Process().pid}), ports=frozenset({port}))
        theirs = Found("theirs", frozenset({pid}), ports=frozenset({port}))
        sockets.watch([ours, theirs])
        assert (sockets.look("ours").backlog, sockets.look("ours").backlog_limit) == (1, 8)
        assert sockets.look("theirs").backlog == PENDING
