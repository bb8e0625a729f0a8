import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.adapters.listener import Listeners

SERVE = """
import socket, sys
where = sys.argv[1]
if where.startswith("unix:"):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(where.removeprefix("unix:"))
    sock.listen()
else:
    sock = socket.create_server(("127.0.0.1", int(where.rpartition(":")[2])))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(address: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "unix":
        return f"unix:{tmp_path / 'socket'}"
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_nobody_listens(address: str) -> None:
    assert Listeners(address).look() is None


def test_who_listens_is_found_and_stays_the_same(address: str) -> None:
    with listening(address) as pid:
        listeners = Listeners(address)
        first, second = listeners.look(), listeners.look()
        assert first == second
        assert first is not None
        assert first.pid == pid


def test_another_process_at_the_same_address_is_another_instance(address: str) -> None:
    listeners = Listeners(address)
    with listening(address):
        before = listeners.look()
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink()
    assert listeners.look() is None
    with listening(address):
        after = listeners.look()
    assert before is not None
    assert after is not None
    assert before.instance != after.instance


def test_a_listener_of_this_process_is_this_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        found = Listeners(f"127.0.0.1:{sock.getsockname()[1]}").look()
    assert found is not None
    assert found.pid == os.getpid()
