"""Whatever a client sends, the server answers each line once, keeps its state, and lives."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.engines.contract import CALLS, ERRORS, MAX_LINE_BYTES
from tests.unit.controller.conformance.engines import TWO_KNOBS, serving

PATIENCE_S = 10
FUZZ = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
STATE = ("values", "pending", "start", "owner", "epoch", "applied_epoch", "prepared_epoch")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**53, 2**63, 2**64, 10**400])
    | st.floats()
    | st.text(max_size=20)
    | st.characters(categories=["Cs", "Cc"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
VALUES = st.dictionaries(
    st.sampled_from([*(knob.name for knob in TWO_KNOBS), "concurrency", ""]),
    st.integers(-1, 70) | SCALARS,
    max_size=3,
)
FIELDS = {
    "id": st.integers(0, 9) | st.text(max_size=3) | JSON,
    "call": st.sampled_from(CALLS) | JSON,
    "owner": st.sampled_from(["a", "b"]) | JSON,
    "epoch": st.integers(0, 60) | JSON,
    "lease_ms": st.integers(0, 20) | JSON,
    "term_ms": st.integers(0, 20) | JSON,
    "period_ms": st.none() | st.integers(59_000, 60_001) | JSON,
    "values": VALUES | JSON,
    "protocol": st.just([1]) | JSON,
}
MESSAGES = st.fixed_dictionaries({}, optional=FIELDS) | st.fixed_dictionaries(FIELDS)
WELL_FORMED = st.fixed_dictionaries(
    {
        "call": st.sampled_from(["set", "set", "prepare", "commit", "abort", "release", "watch"]),
        "owner": st.sampled_from(["a", "b"]),
        "lease_ms": st.sampled_from([1, 30, 500]),
        "term_ms": st.integers(1, 30),
        "values": st.dictionaries(
            st.sampled_from([knob.name for knob in TWO_KNOBS]), st.integers(1, 70), max_size=2
        ),
    }
)
"""Without an epoch: that depends on what the engine has taken."""

LINES = st.binary(max_size=200).map(lambda line: line.replace(b"\n", b"\r"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One server for all of it: what one example does to it the next one meets."""
    with serving(tmp_path_factory.mktemp("fuzzed")) as path:
        yield path
        assert "admin" in {thread.name for thread in threading.enumerate()}


class Line:
    """A connection that reads responses; events are skipped."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(path))
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def response(self) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self._file.readline())
            if "event" not in message:
                return message

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.sock.sendall(json.dumps(message).encode() + b"\n")
        return self.response()

    def at_end(self) -> bool:
        return self._file.read() == b""


def is_a_response(message: Mapping[str, Any]) -> bool:
    if message["ok"] is True:
        return "error" not in message
    return message["ok"] is False and message["error"]["code"] in ERRORS


@FUZZ
@given(lines=st.lists(LINES, max_size=8))
def test_every_line_of_bytes_gets_one_response(server: Path, lines: list[bytes]) -> None:
    with Line(server) as line:
        line.sock.sendall(b"".join(each + b"\n" for each in lines))
        for each in lines:
            if each.strip():
                response = line.response()
                assert is_a_response(response)
                assert response["ok"] is False
        assert line.ask({"id": "last", "call": "get"})["id"] == "last"


@FUZZ
@given(
    messages=st.lists(
        st.tuples(WELL_FORMED | MESSAGES, st.integers(-1, 2)), min_size=1, max_size=10
    )
)
def test_every_message_gets_one_response_and_a_refused_one_changes_nothing(
    server: Path, messages: list[tuple[dict[str, Any], int]]
) -> None:
    with Line(server) as line, Line(server) as other:
        for given_, ahead in messages:
            before = other.ask({"call": "get"})
            message = {"epoch": before["epoch"] + ahead, **given_}
            response = line.ask(message)
            after = other.ask({"call": "get"})
            assert is_a_response(response)
            if type(message.get("id")) in {int, str, type(None)}:
                assert response["id"] == message.get("id")
            else:
                assert response["error"]["code"] == "bad_request"
            if not response["ok"] and after["owner"] == before["owner"]:
                # what stood may have run out between; nothing else may be another
                lapsed = {"prepared_epoch"} if after["prepared_epoch"] is None else set()
                for name in set(STATE) - lapsed:
                    assert after[name] == before[name], (name, message)
            assert after["epoch"] >= before["epoch"]
            assert after["applied_epoch"] <= after["epoch"]
            assert after["start"] == before["start"]
            if after["owner"] is None:
                assert after["values"] == after["start"]
            for knob in TWO_KNOBS:
                value = after["values"][knob.name]
                assert type(value) is int
                assert knob.minimum <= value <= knob.maximum


@FUZZ
@given(
    messages=st.lists(st.fixed_dictionaries({"call": st.just("get")}, optional={"x": JSON})),
    data=st.data(),
)
def test_it_does_not_matter_how_the_bytes_are_cut(
    server: Path, messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    messages = [{**message, "id": n} for n, message in enumerate(messages)]
    sent = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=8)))
    with Line(server) as line:
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            line.sock.sendall(sent[begin:end])
        assert [line.response()["id"] for _ in messages] == list(range(len(messages)))


@settings(FUZZ, max_examples=30)
@given(byte=st.binary(min_size=1, max_size=3), extra=st.integers(0, 70_000))
def test_a_line_that_is_too_long_ends_its_connection_and_no_other(
    server: Path, byte: bytes, extra: int
) -> None:
    filling = byte.replace(b"\n", b"x") * MAX_LINE_BYTES
    with Line(server) as other, Line(server) as line:
        with suppress(BrokenPipeError, ConnectionResetError):  # closed before it had all of it
            line.sock.sendall(filling[: MAX_LINE_BYTES + extra])
        with suppress(ConnectionResetError):  # how the end reads where it had not read all
            assert line.response()["error"]["code"] == "bad_json"
            assert line.at_end()
        assert other.ask({"id": 1, "call": "get"})["ok"] is True
