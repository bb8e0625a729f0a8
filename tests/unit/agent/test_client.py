"""The client against the real API, and against what is not the API."""

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.agent_view import ApiError
from agent.api import admin_app
from agent.client import AgentClient, RefusedError, UnreachableError
from agent.http import unix_server
from tests.unit.agent.recorded import RecordedView, anyone, served


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


@contextmanager
def answering(path: Path, answer: bytes, *, hold: bool = False) -> Iterator[None]:
    """Something else at the socket: it answers its only client with `answer`."""
    done = threading.Event()

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            try:
                client.sendall(answer)
            except OSError:
                return  # the client had enough
            if hold:
                done.wait(10)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        done.set()
        thread.join()


def test_every_call_brings_what_the_view_says(path: Path) -> None:
    view = RecordedView()
    with served(view, path):
        agent = AgentClient(path)
        assert agent.status() == view.state
        assert agent.engines() == {"engines": view.state["engines"]}
        assert agent.streams("chat", 1, 1) == {"streams": view.ended[1:2], "next": 2}
        assert agent.explain("chat", 5)["seconds"] == 5
        assert agent.stages("chat", 5) == view.staged
        assert agent.journal(1, "chat", 12)["decisions"] == view.decisions[1:]
        assert agent.policy()["source"] == "/etc/sits/policy.toml"
        assert agent.doctor()["findings"] == view.findings
        assert agent.set_mode("shadow", "why & so ü") == {"mode": "shadow"}
    assert view.asked[-1] == ("set_mode", "shadow", "why & so ü")


def test_arguments_left_out_are_left_to_the_agent(path: Path) -> None:
    view = RecordedView()
    with served(view, path):
        agent = AgentClient(path)
        agent.streams()
        agent.explain()
        agent.stages()
        agent.stages(factor=2, floor=0.5)
        agent.journal()
    assert view.asked == [
        ("streams", None, None, 100),
        ("explain", "chat", 30.0),
        ("stages", "chat", 30.0, 1.5, None),
        ("stages", "chat", 30.0, 2.0, 0.5),
        ("journal", 20, None, None, "newest"),
    ]


def test_a_name_with_any_character_arrives(path: Path) -> None:
    view = RecordedView()
    with served(view, path):
        AgentClient(path).journal(engine="a&b=c %/ü\n")
    assert view.asked == [("journal", 20, "a&b=c %/ü\n", None, "newest")]


def test_a_refusal_keeps_its_status_and_words(path: Path) -> None:
    view = RecordedView()
    view.raises = ApiError(409, "the controller is not running")
    with served(view, path), pytest.raises(RefusedError) as caught:
        AgentClient(path).set_mode("control")
    assert (caught.value.status, str(caught.value)) == (409, "sitsd: the controller is not running")


def test_no_socket_asks_whether_the_agent_runs(path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        AgentClient(path).status()
    assert str(caught.value) == (
        f"could not reach sitsd at '{path}': no such socket; is it running?"
        " `systemctl status sitsd`"
    )


def test_a_socket_nobody_listens_on_asks_whether_the_agent_runs(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    with pytest.raises(UnreachableError, match="nobody listens; is it running"):
        AgentClient(path).status()


@pytest.mark.parametrize("target", ["file", "too long"])
def test_what_can_be_no_socket_is_an_error(tmp_path: Path, target: str) -> None:
    path = tmp_path / ("x" * 120 if target == "too long" else "file")
    if target == "file":
        path.touch()
    with pytest.raises(UnreachableError, match="could not reach sitsd at"):
        AgentClient(path).status()


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user who may nothing."""
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may nothing")
@pytest.mark.parametrize(
    ("directory_mode", "group", "who"),
    [
        (0o755, "root", "root and the group root"),
        (0o755, "no-such-group", "root"),
        (0o700, "root", "root"),
    ],
)
def test_no_permission_says_who_may(directory_mode: int, group: str, who: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(directory_mode)
        path = Path(directory) / "admin.sock"
        with (
            unix_server(path, admin_app(RecordedView(), anyone), group),
            nobody(),
            pytest.raises(UnreachableError, match=f"permission denied; {who} may use it"),
        ):
            AgentClient(path).status()


def test_silence_ends_in_a_timeout(path: Path) -> None:
    with answering(path, b"", hold=True), pytest.raises(UnreachableError, match=r"within 0\.2 s"):
        AgentClient(path, timeout_s=0.2).status()


def test_half_an_answer_ends_in_a_timeout(path: Path) -> None:
    with (
        answering(path, b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\n{", hold=True),
        pytest.raises(UnreachableError, match=r"no answer within 0\.2 s"),
    ):
        AgentClient(path, timeout_s=0.2).status()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "hung up without an answer"),
        (b"+OK redis\r\n", "not HTTP"),
        (b"\x00" * 1000, "not HTTP"),
        (b"HTTP/1.0 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", "not HTTP"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\n{}", "not HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "not a JSON object"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "not a JSON object"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000, "not a JSON object"),
        (b"HTTP/1.0 404 Not Found\r\n\r\nnginx", "not a JSON object"),
        (b"HTTP/1.0 200 OK\r\n\r\n\xff", "not a JSON object"),
    ],
)
def test_nonsense_is_told_apart_from_the_agent(path: Path, answer: bytes, words: str) -> None:
    with answering(path, answer), pytest.raises(UnreachableError, match=words) as caught:
        AgentClient(path).status()
    assert str(path) in str(caught.value)


def test_a_busy_agent_says_to_try_again(path: Path) -> None:
    busy = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with answering(path, busy), pytest.raises(RefusedError, match="busy; try again"):
        AgentClient(path).status()


def test_an_error_without_words_names_the_status(path: Path) -> None:
    with (
        answering(path, b"HTTP/1.0 418 Teapot\r\n\r\n{}"),
        pytest.raises(RefusedError, match="status 418"),
    ):
        AgentClient(path).status()
