"""The servers, over real sockets."""

import gc
import grp
import http.client
import json
import logging
import os
import socket
import stat
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
from prometheus_client import CollectorRegistry, Counter

from agent import connections
from agent.connections import MAX_CONNECTIONS
from agent.http import HttpError, HttpServer, answer_json, metrics_app, tcp_server, unix_server


def echo(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    body = environ["wsgi.input"].read().decode()
    return answer_json(start_response, 200, {"path": environ["PATH_INFO"], "body": body})


def connect(where: Path | tuple[str, int]) -> socket.socket:
    if isinstance(where, tuple):
        return socket.create_connection(where, timeout=10)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(str(where))
    return sock


def rest(sock: socket.socket) -> bytes:
    """Everything until the other end closes."""
    received = b""
    while more := sock.recv(65536):
        received += more
    return received


def exchange(where: Path | tuple[str, int], request: bytes) -> bytes:
    with connect(where) as sock:
        sock.sendall(request)
        return rest(sock)


def slept(name: str) -> int:
    """How often the thread of this name has gone to sleep."""
    (thread,) = (each for each in threading.enumerate() if each.name == name)
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def drip(sock: socket.socket) -> None:
    """Send a byte now and then until that fails."""
    while True:
        sock.sendall(b"x")
        time.sleep(0.02)


def get(port: int, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


@pytest.fixture
def server(path: Path) -> Iterator[HttpServer]:
    with unix_server(path, echo) as running:
        yield running


def metrics(healthz: Any = lambda: (True, {})) -> WSGIApplication:
    registry = CollectorRegistry()
    Counter("sits_things", "Things.", registry=registry).inc(3)
    return metrics_app(registry, healthz)


def test_a_server_without_clients_sleeps_until_one_comes(server: HttpServer, path: Path) -> None:
    exchange(path, b"GET /a HTTP/1.0\r\n\r\n")
    time.sleep(2 * connections.POLL_S)
    before = slept(f"http {server.address}")
    time.sleep(10 * connections.POLL_S)
    assert slept(f"http {server.address}") - before <= 2
    assert b" 200 " in exchange(path, b"GET /b HTTP/1.0\r\n\r\n")


def test_a_request_over_the_unix_socket_is_answered(server: HttpServer, path: Path) -> None:
    answer = exchange(path, b"POST /a%20b?c HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert json.loads(content) == {"path": "/a b", "body": "body"}
    assert (server.address, server.port) == (str(path), None)


def test_an_answer_tells_nothing_of_what_serves_it(server: HttpServer, path: Path) -> None:
    assert b"Python" not in exchange(path, b"GET / HTTP/1.1\r\n\r\n")


def test_stop_leaves_no_socket_and_no_warning(path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        server = unix_server(path, echo)
        server.start()
        with connect(path):
            exchange(path, b"GET / HTTP/1.1\r\n\r\n")
            server.stop()
        server.stop()
        del server
        gc.collect()
    assert [str(item.message) for item in caught] == []
    assert not path.exists()
    for each in threading.enumerate():
        if "http" in each.name:
            each.join(5)
    assert [thread.name for thread in threading.enumerate() if "http" in thread.name] == []


def test_a_server_never_started_can_be_stopped(path: Path) -> None:
    unix_server(path, echo).stop()
    assert not path.exists()


def test_stop_leaves_a_socket_that_another_put_there(path: Path) -> None:
    server = unix_server(path, echo)
    path.unlink()
    with unix_server(path, echo):
        server.stop()
        assert b"200" in exchange(path, b"GET / HTTP/1.1\r\n\r\n")


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    with unix_server(path, echo):
        assert b"200" in exchange(path, b"GET / HTTP/1.1\r\n\r\n")


def test_a_live_socket_is_refused_and_lives_on(server: HttpServer, path: Path) -> None:
    with pytest.raises(HttpError, match=r"'.*admin\.sock': another process listens there"):
        unix_server(path, echo)
    assert b"200" in exchange(path, b"GET / HTTP/1.1\r\n\r\n")


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(HttpError, match="a file that is no socket is there"):
        unix_server(path, echo)
    assert path.read_text() == "precious"


def test_a_path_that_cannot_hold_a_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HttpError, match=r"could not listen on '.*': no such file or directory"):
        unix_server(tmp_path / "missing" / "admin.sock", echo)
    with pytest.raises(HttpError, match="AF_UNIX path too long"):
        unix_server(tmp_path / ("x" * 120), echo)


def test_the_socket_is_for_its_owner_and_the_group_if_there_is_one(tmp_path: Path) -> None:
    own = grp.getgrgid(os.getgid())
    with unix_server(tmp_path / "a.sock", echo, own.gr_name):
        found = (tmp_path / "a.sock").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, own.gr_gid)
    with unix_server(tmp_path / "b.sock", echo, "no-such-group"):
        assert stat.S_IMODE((tmp_path / "b.sock").stat().st_mode) == 0o600


def test_clients_that_say_nothing_hold_nobody_up(server: HttpServer, path: Path) -> None:
    with ExitStack() as stack:
        for number in range(3 * MAX_CONNECTIONS):
            silent = stack.enter_context(connect(path))
            silent.sendall(b"GET / HT"[: number % 8])
        threads = [item for item in threading.enumerate() if item.name == "http client"]
        assert b"200 OK" in exchange(path, b"GET / HTTP/1.1\r\n\r\n")
        # Those hung up on may still be on their way out.
        assert len(threads) <= 2 * MAX_CONNECTIONS


def test_a_client_that_says_nothing_is_hung_up_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    with unix_server(path, echo), connect(path) as sock:
        # Drips do not prolong it: the whole request has one deadline.
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip(sock)
        assert b"200 OK" in exchange(path, b"GET / HTTP/1.1\r\n\r\n")


def test_more_requests_at_once_than_threads_are_refused_not_lost(path: Path) -> None:
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        inside.release()
        go_on.wait(10)
        return echo(environ, start_response)

    with unix_server(path, slow), ExitStack() as stack:
        clients = [stack.enter_context(connect(path)) for _ in range(MAX_CONNECTIONS)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for _ in clients:
            assert inside.acquire(timeout=10)
        with connect(path) as refused:
            # The answer comes before the request is sent, and the request can be sent all the same.
            assert refused.recv(12, socket.MSG_PEEK) == b"HTTP/1.0 503"
            refused.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"503" in rest(refused)
        go_on.set()
        assert all(b"200 OK" in rest(client) for client in clients)


def test_clients_that_are_refused_and_stay_are_few_and_not_for_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    monkeypatch.setattr(connections, "BACKLOG", 2)
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        inside.release()
        go_on.wait(10)
        return echo(environ, start_response)

    with unix_server(path, slow), ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            client = stack.enter_context(connect(path))
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert inside.acquire(timeout=10)
        refused = [stack.enter_context(connect(path)) for _ in range(3)]
        assert all(b"503" in rest(client) for client in refused)
        # The first had to go for the third, the others when their time was up.
        for client in refused:
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                drip(client)
        go_on.set()


def test_a_client_that_leaves_harms_nobody(
    server: HttpServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            with connect(path) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"200 OK" in exchange(path, b"GET / HTTP/1.1\r\n\r\n")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\r\n", b'"error"'),
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
    ],
)
def test_what_is_not_http_is_refused_in_json(
    server: HttpServer, path: Path, request_bytes: bytes, status: bytes
) -> None:
    answer = exchange(path, request_bytes)
    assert status in answer
    assert "error" in json.loads(answer.rpartition(b"\r\n")[2])


def test_a_body_that_nobody_reads_does_not_cost_the_answer(server: HttpServer, path: Path) -> None:
    size = 150_000
    head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size
    assert b"200 OK" in exchange(path, head + b"x" * size)


def test_a_fault_in_the_application_is_logged_and_not_shown(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        raise RuntimeError("secret")

    with unix_server(path, broken):
        answer = exchange(path, b"GET / HTTP/1.1\r\n\r\n")
    assert b"500" in answer
    assert b"secret" not in answer
    assert "secret" in caplog.text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_metrics_are_served_over_ipv4_and_ipv6(host: str, shown: str) -> None:
    with tcp_server(host, 0, metrics()) as server:
        assert server.port
        assert server.address == f"{shown}:{server.port}"
        status, content = get(server.port, "/metrics", host=host)
    assert (status, b"sits_things_total 3.0" in content) == (200, True)


def test_a_port_in_use_is_named() -> None:
    with tcp_server("127.0.0.1", 0, metrics()) as server:
        assert server.port
        with pytest.raises(HttpError) as caught:
            tcp_server("127.0.0.1", server.port, metrics())
    assert str(caught.value) == (
        f"could not listen on '127.0.0.1:{server.port}': address already in use"
    )


def test_a_port_can_be_taken_again_at_once() -> None:
    with tcp_server("127.0.0.1", 0, metrics()) as first:
        assert first.port
        get(first.port, "/")
    with tcp_server("127.0.0.1", first.port, metrics()) as second:
        assert second.port == first.port


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 64])
def test_an_address_that_is_not_ours_is_an_error(host: str) -> None:
    with pytest.raises(HttpError, match=f"could not listen on '{host}:0': "):
        tcp_server(host, 0, metrics())


@pytest.mark.parametrize(("ok", "status"), [(True, 200), (False, 503)])
def test_healthz_says_whether_all_is_well(ok: bool, status: int) -> None:
    with tcp_server("127.0.0.1", 0, metrics(lambda: (ok, {"problems": ["x"]}))) as server:
        assert server.port
        answer = get(server.port, "/healthz")
    assert (answer[0], json.loads(answer[1])) == (status, {"ok": ok, "problems": ["x"]})


def test_the_index_names_what_is_there_and_the_rest_is_not_found() -> None:
    with tcp_server("127.0.0.1", 0, metrics()) as server:
        assert server.port
        index, missing = get(server.port, "/"), get(server.port, "/admin")
        posted, head = get(server.port, "/healthz", "POST"), get(server.port, "/healthz", "HEAD")
    assert index == (200, b"sitsd: /metrics /healthz\n")
    assert (missing[0], b"/metrics" in missing[1]) == (404, True)
    assert (posted[0], head) == (405, (200, b""))
