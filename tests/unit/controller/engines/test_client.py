import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.engines.client import (
    MAX_UNANSWERED,
    EngineClient,
    EngineError,
    Event,
    Request,
    Response,
    call,
)
from controller.engines.contract import MAX_LINE_BYTES


@contextmanager
def connected(tmp_path: Path) -> Iterator[tuple[EngineClient, socket.socket]]:
    """A client and the peer's end of its connection, which the test speaks for."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        with EngineClient(path) as client:
            client.connect()
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(5)
                yield client, peer


@contextmanager
def answering(tmp_path: Path, answer: Callable[[bytes], bytes]) -> Iterator[Path]:
    """A peer on a thread that answers the first line of each connection, then closes it."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, peer.makefile("rb") as lines:
                peer.sendall(answer(lines.readline()))

        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        thread.join()


def read_on(client: EngineClient) -> None:
    for _ in range(10):
        client.on_readable()


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def test_a_request_is_one_line_and_its_answer_comes_back(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, peer):
        request_id = client.request("set", 70, owner="a", epoch=1)
        assert json.loads(peer.recv(1000)) == {"id": 1, "call": "set", "owner": "a", "epoch": 1}
        peer.sendall(line(id=request_id, ok=True, state="applied"))
        (response,) = client.on_readable()
        assert isinstance(response, Response)
        assert response.request == Request(1, "set", 70)
        assert response.refusal is None
        assert response.fields["state"] == "applied"
        assert client.unanswered == 0


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, peer):
        client.request("set", 0)
        error = {"code": "held", "message": "no", "knob": "max_running"}
        peer.sendall(line(id=1, ok=False, error=error))
        (response,) = client.on_readable()
        assert isinstance(response, Response)
        assert response.refusal is not None
        assert (response.refusal.code, response.refusal.knob) == ("held", "max_running")


def test_half_a_line_is_waited_for(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, peer):
        client.request("get", 0)
        whole = line(id=1, ok=True)
        peer.sendall(whole[:7])
        assert client.on_readable() == []
        peer.sendall(whole[7:] + line(event="stats", id=1, now={}))
        response, event = client.on_readable()
        assert isinstance(response, Response)
        assert isinstance(event, Event)
        assert event.name == "stats"


def test_nothing_to_read_is_no_wait_and_no_error(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, _):
        assert client.on_readable() == []


def test_a_peer_that_hangs_is_reported_and_its_late_answer_dropped(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, peer):
        client.request("get", 100)
        client.request("get", 150)
        assert client.overdue(199, 100) == []
        assert client.overdue(200, 100) == [Request(1, "get", 100)]
        assert client.overdue(200, 100) == []
        peer.sendall(line(id=1, ok=True) + line(id=2, ok=True))
        (response,) = client.on_readable()
        assert isinstance(response, Response)
        assert response.request.id == 2
        assert client.late == 1


def test_a_peer_that_never_reads_is_not_asked_without_end(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, _):
        sent = [client.request("set", 0, owner="x" * 10_000) for _ in range(200)]
        accepted = [request_id for request_id in sent if request_id is not None]
        assert accepted == list(range(1, len(accepted) + 1))
        assert len(accepted) <= MAX_UNANSWERED
        assert client.request("get", 0) is None


def test_what_was_queued_goes_out_when_the_peer_reads_again(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, peer):
        count = 0
        while not client.wants_write:
            assert client.request("set", 0, owner="x" * 50_000) is not None
            count += 1
        received = b""
        while received.count(b"\n") < count:
            received += peer.recv(1 << 20)
            client.on_writable()
        assert not client.wants_write
        assert [json.loads(part)["id"] for part in received.splitlines()] == [*range(1, count + 1)]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "answered with b'HTTP/1.1 400"),
        (b"[1]\n", "a message is a JSON object"),
        (b"\xff\xfe\n", "not a line of JSON"),
        (line(id=9, ok=True), "answered a request that was not made: id 9"),
        (line(id=True, ok=True), "answered a request that was not made"),
        (line(ok=True), "answered a request that was not made: id None"),
        (line(id=1), "answered with neither success nor error"),
        (line(id=1, ok=False, error="no"), "answered with neither success nor error"),
        (b"x" * (MAX_LINE_BYTES + 1), "sent a line of more than 65536 bytes"),
        (line(id=None, ok=False, error={"code": "denied", "message": "go"}), "refused: go"),
    ],
)
def test_nonsense_is_an_error_that_quotes_it(tmp_path: Path, sent: bytes, said: str) -> None:
    with connected(tmp_path) as (client, peer):
        client.request("get", 0)
        peer.sendall(sent)
        with pytest.raises(EngineError) as caught:
            read_on(client)
        assert said in str(caught.value)
        assert str(caught.value).startswith(f"engine at '{client.path}' ")
        assert client.fileno() == -1


def test_a_peer_that_closes_is_an_error_after_its_last_word(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, peer):
        client.request("get", 0)
        peer.sendall(line(id=1, ok=True))
        peer.close()
        client.request("get", 0)
        assert len(client.on_readable()) == 1
        with pytest.raises(EngineError, match="closed the connection"):
            client.on_readable()


def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        EngineClient(tmp_path / "no.sock") as client,
        pytest.raises(EngineError, match=r"could not reach engine at '.*no\.sock': .*No such file"),
    ):
        client.connect()


def test_an_engine_that_does_not_accept_costs_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with EngineClient(path) as first, EngineClient(path) as second:
            first.connect()
            with pytest.raises(EngineError, match="does not accept connections"):
                second.connect()


def test_call_returns_the_answer_s_fields(tmp_path: Path) -> None:
    def answer(asked: bytes) -> bytes:
        return line(event="knobs") + line(id=1, ok=True, echo=json.loads(asked))

    with answering(tmp_path, answer) as path:
        fields = call(path, "get", 5, owner="me")
        assert fields["echo"] == {"id": 1, "call": "get", "owner": "me"}


def test_call_raises_a_refusal_with_its_code(tmp_path: Path) -> None:
    refusal = line(id=1, ok=False, error={"code": "held", "message": "the lease is a's"})
    with answering(tmp_path, lambda _: refusal) as path:
        with pytest.raises(EngineError, match="refused set: the lease is a's") as caught:
            call(path, "set", 5)
        assert caught.value.code == "held"


def test_call_waits_no_longer_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"did not answer get within 0\.05 s"):
            call(path, "get", 0.05)
        assert time.monotonic() - began < 5
