"""The kernel's socket lists, of real sockets on loopback, and what another reader makes of them."""

import importlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from agent.sock_diag import Connection, Listener, SockDiag, open_in

SMALL = 4096


@pytest.fixture
def diag() -> Iterator[SockDiag]:
    with SockDiag() as made:
        yield made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def listening(stack: ExitStack, backlog: int = 8, host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return stack.enter_context(
        socket.create_server((host, 0), family=family, backlog=backlog, dualstack_ipv6=host == "::")
    )


def connected(
    stack: ExitStack, listener: socket.socket, host: str | None = None, receive: int = 0
) -> socket.socket:
    address, port = listener.getsockname()[:2]
    client = socket.socket(socket.AF_INET6 if ":" in (host or address) else socket.AF_INET)
    stack.enter_context(client)
    if receive:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.connect((host or address, port))
    return client


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@pytest.mark.parametrize("pending", [0, 1, 5, 9])
def test_the_accept_queue_holds_exactly_the_connections_nobody_accepted(
    diag: SockDiag, stack: ExitStack, pending: int
) -> None:
    # the kernel lets in one more than the limit
    listener = listening(stack, backlog=8)
    for _ in range(pending):
        connected(stack, listener)
    found = diag.listeners(port_of(listener))
    assert found == [Listener(socket.AF_INET, port_of(listener), pending, 8)]


def test_what_is_accepted_leaves_the_accept_queue(diag: SockDiag, stack: ExitStack) -> None:
    listener = listening(stack)
    for _ in range(3):
        connected(stack, listener)
    stack.enter_context(listener.accept()[0])
    (found,) = diag.listeners(port_of(listener))
    assert found.backlog == 2
    accepted = [c.accepted for c in diag.connections(port_of(listener), found.family)]
    assert sorted(accepted) == [False, False, True]


def test_bytes_the_engine_did_not_read_are_counted(diag: SockDiag, stack: ExitStack) -> None:
    listener = listening(stack)
    client = connected(stack, listener)
    server = stack.enter_context(listener.accept()[0])
    client.sendall(b"x" * 1000)
    (before,) = diag.connections(port_of(listener), socket.AF_INET)
    assert (before.unread_bytes, before.unsent_bytes) == (1000, 0)
    assert server.recv(400) == b"x" * 400
    (after,) = diag.connections(port_of(listener), socket.AF_INET)
    assert after.unread_bytes == 600


def test_bytes_a_client_has_no_room_for_stay_unsent(diag: SockDiag, stack: ExitStack) -> None:
    listener = listening(stack)
    client = connected(stack, listener, receive=SMALL)
    server = stack.enter_context(listener.accept()[0])
    server.setblocking(False)
    written = 0
    while True:
        try:
            written += server.send(b"y" * SMALL)
        except BlockingIOError:
            break
    (found,) = diag.connections(port_of(listener), socket.AF_INET)
    assert 0 < found.unsent_bytes <= written
    received = 0
    client.setblocking(True)
    while received < written:
        received += len(client.recv(1 << 16))
    (drained,) = diag.connections(port_of(listener), socket.AF_INET)
    assert (drained.unsent_bytes, drained.in_flight_bytes) == (0, 0)


def test_the_client_and_the_cookie_are_the_socket_s_own(diag: SockDiag, stack: ExitStack) -> None:
    so_cookie = 57
    listener = listening(stack)
    client = connected(stack, listener)
    server = stack.enter_context(listener.accept()[0])
    (found,) = diag.connections(port_of(listener), socket.AF_INET)
    assert found.cookie == int.from_bytes(
        server.getsockopt(socket.SOL_SOCKET, so_cookie, 8), "little"
    )
    assert found.remote_name == f"127.0.0.1:{client.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "client", "name"), [("::1", "::1", "[::1]"), ("::", "127.0.0.1", "127.0.0.1")]
)
def test_ipv6_listeners_have_their_clients_of_both_families(
    diag: SockDiag, stack: ExitStack, host: str, client: str, name: str
) -> None:
    listener = listening(stack, host=host)
    peer = connected(stack, listener, client)
    (found,) = diag.listeners(port_of(listener))
    assert (found.family, found.backlog) == (socket.AF_INET6, 1)
    (pending,) = diag.connections(port_of(listener), socket.AF_INET6)
    assert pending.remote_name == f"{name}:{peer.getsockname()[1]}"


def test_more_connections_than_one_answer_holds_are_all_there(
    diag: SockDiag, stack: ExitStack
) -> None:
    listener = listening(stack, backlog=400)
    clients = [connected(stack, listener) for _ in range(400)]
    found = diag.connections(port_of(listener), socket.AF_INET)
    assert {c.remote_port for c in found} == {c.getsockname()[1] for c in clients}
    assert len(found) == 400


def test_a_port_nobody_listens_on_has_nothing(diag: SockDiag) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = port_of(gone)
    assert diag.listeners(port) == []
    assert diag.connections(port, socket.AF_INET) == []


def test_another_reader_of_the_same_lists_sees_the_same(diag: SockDiag, stack: ExitStack) -> None:
    module: Any = importlib.import_module("pyroute2.netlink.diag")
    listener = listening(stack)
    clients = [connected(stack, listener, receive=SMALL) for _ in range(5)]
    accepted = [stack.enter_context(listener.accept()[0]) for _ in range(3)]
    for client in clients:
        client.sendall(b"z" * 77)
    accepted[0].setblocking(False)
    accepted[0].send(b"y" * 64 * SMALL)
    port = port_of(listener)
    with module.DiagSocket() as other:
        other.bind()
        theirs = {
            (each["idiag_cookie"], each["idiag_dport"], each["idiag_rqueue"], each["idiag_wqueue"])
            for each in other.get_sock_stats(family=socket.AF_INET, states=1 << 1, sport=port)
        }
        (theirs_listening,) = other.get_sock_stats(
            family=socket.AF_INET, states=1 << 10, sport=port
        )
    mine = {
        (c.cookie, c.remote_port, c.unread_bytes, c.unsent_bytes + c.in_flight_bytes)
        for c in diag.connections(port, socket.AF_INET)
    }
    assert mine == theirs
    (listens,) = diag.listeners(port)
    assert (listens.backlog, listens.limit) == (
        theirs_listening["idiag_rqueue"],
        theirs_listening["idiag_wqueue"],
    )


def test_what_is_no_namespace_is_refused_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = list(Path("/proc/self/fd").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Invalid argument|not permitted"):
        open_in(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        open_in(tmp_path / "none")
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_a_connection_of_another_port_is_not_ours(diag: SockDiag, stack: ExitStack) -> None:
    one, other = listening(stack), listening(stack)
    connected(stack, one)
    assert diag.connections(port_of(other), socket.AF_INET) == []
    with closing(SockDiag()) as second:
        (found,) = second.connections(port_of(one), socket.AF_INET)
    assert isinstance(found, Connection)
