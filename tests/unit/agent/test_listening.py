import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.listening import KNOWN_S, Listeners, ListeningPorts, listening_ports, parse_listeners
from agent.sock_diag import SockDiag

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9ECB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3065421 1
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1
   2: 0100007F:9ECB 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 3065422 1
   3: 00000000:0051 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1
"""
TCP6 = """\
  sl  local_address remote_address st tx_queue tr retrnsmt uid timeout inode
   0: 00000000000000000000000001000000:1F90 00000000:0000 0A 00:0 00:0 00 0 0 7 1
"""


def test_listeners_are_those_in_state_listen_up_to_the_first_that_is_not() -> None:
    assert parse_listeners(TCP.splitlines()) == {"3065421": 40651, "12": 80}
    assert parse_listeners(TCP6.splitlines()) == {"7": 8080}


@pytest.mark.parametrize("text", ["", "  sl  local_address\n", "\n\n", f"\n{'0A ' * 8}"])
def test_a_file_without_sockets_has_no_listeners(text: str) -> None:
    assert parse_listeners(text.splitlines()) == {}


def test_the_kernel_lists_those_that_listen_before_all_others() -> None:
    with ExitStack() as stack:
        listeners = []
        for _ in range(3):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listeners.append(listener.getsockname()[1])
            stack.enter_context(socket.create_connection(listener.getsockname()))
        with Path("/proc/net/tcp").open() as lines:
            assert set(listeners) <= set(parse_listeners(lines).values())


def test_a_socket_that_begins_to_listen_is_seen_at_the_next_look() -> None:
    ports = ListeningPorts()
    before = ports.of(os.getpid(), now_s=0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports.next_look()
        assert ports.of(os.getpid(), now_s=1) == before | {listener.getsockname()[1]}
    ports.next_look()
    assert ports.of(os.getpid(), now_s=2) == before


def test_what_was_handed_over_meanwhile_is_seen_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        script = "import socket, sys; s = socket.socket(socket.AF_UNIX, fileno=0); held = []\n"
        script += "while True: held += socket.recv_fds(s, 9, 1)[1]; s.send(b'.')"
        ours, theirs = socket.socketpair()
        with (
            ours,
            subprocess.Popen([sys.executable, "-c", script], stdin=theirs.fileno()) as process,
        ):
            theirs.close()
            ports = ListeningPorts()
            assert port not in ports.of(process.pid, now_s=0)
            socket.send_fds(ours, [b"listener"], [listener.fileno()])
            assert ours.recv(1) == b"."
            ports.next_look()
            assert port in ports.of(process.pid, now_s=KNOWN_S)
            process.kill()


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


def test_who_listens_on_a_port_is_found_and_who_only_connects_is_not() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as two,
        subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=[two.fileno()],
        ) as heir,
    ):
        listeners = Listeners()
        assert listeners.of(one.getsockname()[1], now_s=0) == {os.getpid()}
        assert listeners.of(two.getsockname()[1], now_s=0) == {os.getpid(), heir.pid}
        with socket.create_connection(one.getsockname()) as client:
            assert listeners.of(client.getsockname()[1], now_s=0) == frozenset()
        heir.kill()
        heir.wait()
        assert listeners.of(two.getsockname()[1], now_s=1) == {os.getpid()}


def test_another_listener_on_the_same_port_is_seen_at_once() -> None:
    listeners = Listeners()
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert listeners.of(port, now_s=0) == {os.getpid()}
    assert listeners.of(port, now_s=1) == frozenset()
    with socket.create_server(("127.0.0.1", port)):
        assert listeners.of(port, now_s=2) == {os.getpid()}


def test_netlink_lists_the_same_sockets_as_proc() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as two,
        SockDiag() as diag,
        Path("/proc/net/tcp").open() as tcp,
        Path("/proc/net/tcp6").open() as tcp6,
    ):
        shown = parse_listeners(tcp) | parse_listeners(tcp6)
        asked = diag.listening()
        for each in (one, two):
            inode = str(os.fstat(each.fileno()).st_ino)
            assert asked[inode] == shown[inode] == each.getsockname()[1]


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
