import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.listening import listening_ports, parse_listeners

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9ECB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3065421 1
   1: 0100007F:9ECB 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 3065422 1
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1
   3: 00000000:0051 00000000:0000 0A 000
"""
TCP6 = """\
  sl  local_address remote_address st tx_queue tr retrnsmt uid timeout inode
   0: 00000000000000000000000001000000:1F90 00000000:0000 0A 00:0 00:0 00 0 0 7 1
"""


def test_listeners_are_those_in_state_listen() -> None:
    assert parse_listeners(TCP) == {"3065421": 40651, "12": 80}
    assert parse_listeners(TCP6) == {"7": 8080}


@pytest.mark.parametrize("text", ["", "  sl  local_address\n", "\n\n"])
def test_a_file_without_sockets_has_no_listeners(text: str) -> None:
    assert parse_listeners(text) == {}


def test_a_process_has_the_ports_of_its_own_sockets_only() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as two,
        socket.create_connection(one.getsockname()) as client,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        ours = listening_ports(os.getpid())
        assert {one.getsockname()[1], two.getsockname()[1]} <= ours
        assert client.getsockname()[1] not in ours
        assert listening_ports(other.pid) == frozenset()
        other.kill()


def test_a_process_that_is_gone_has_none() -> None:
    assert listening_ports(2**22 + 1) == frozenset()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert listening_ports(process.pid) == frozenset()


def test_what_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    home = tmp_path / "7"
    (home / "fd").mkdir(parents=True)
    (home / "fd" / "3").symlink_to("socket:[12]")
    (home / "fd" / "4").symlink_to("pipe:[3065421]")
    (home / "net").mkdir()
    (home / "net" / "tcp").write_text(TCP)
    assert listening_ports(7, tmp_path) == {80}
