"""What is fuzzed: one function for each of our readers of other people's bytes.

Each takes any bytes and raises for a fault only: what the reader refuses, it refuses in its own
way, and what it lets through keeps its promises.
"""

import json
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from agent.api import MAX_POLICY_BODY_BYTES, admin_app
from agent.connections import Server
from agent.request_head import PATH_CHARACTERS, header_values, parse_traceparent, read_head
from agent.roles import operators_only
from agent.versions import Versions
from controller.engines.contract import ERRORS, Hello, decode, encode
from controller.engines.link import EngineLink
from controller.engines.told import LinkState
from controller.policy import (
    Policy,
    PolicyError,
    load_policy,
    parse_policy,
    policy_from_json,
    policy_to_json,
)
from controller.policy_diff import policy_changes
from controller.serving.calls import Calls
from tests.unit.agent.recorded import RecordedView
from tests.unit.controller.conformance.engines import TWO_KNOBS, SmallEngine

HELLO: Final = Hello(
    "fuzzed", "1", "instance", 1, {each.name: each for each in TWO_KNOBS}, page=None
)
MS: Final = 1_000_000


def request_head(data: bytes) -> None:
    """The first bytes of a request, as the kernel copied them."""
    head = read_head(data)
    assert head.path.isprintable()
    assert len(head.path) <= PATH_CHARACTERS * len(r"\U0010ffff")
    assert head.method.isprintable()
    assert not (head.malformed and head.caller is not None)
    values, _ = header_values(data, "x-version")
    assert all(b"\r\n" not in value for value in values)
    versions = Versions()
    versions.ask({"chat": "x-version"})
    version = versions.of("chat", data)
    assert version is not None
    assert version.isprintable()
    caller = parse_traceparent(data)
    assert caller is None or caller.span.trace_id > 0


def policy(data: bytes) -> None:
    """A policy file."""
    fd = os.memfd_create("policy")
    try:
        os.write(fd, data)
        found = _loaded(Path(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)
    if isinstance(found, str):
        assert found
        assert all(line.isprintable() for line in found.split("\n"))
        return
    assert policy_from_json(policy_to_json(found)) == found
    assert policy_changes(found, found) == ()
    assert parse_policy(data.decode("utf-8-sig"), "again") == found


def _loaded(path: Path) -> Policy | str:
    """The policy in a file, or why it does not hold."""
    try:
        return load_policy(path)
    except PolicyError as error:
        return str(error)


def engine_server(data: bytes) -> None:
    """The lines of a client to whoever serves the engine contract."""
    engine = SmallEngine(TWO_KNOBS, None)
    calls = Calls(engine, HELLO)
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            message = decode(line)
        except ValueError:
            continue
        answer = json.loads(encode(calls.answer(message)))
        assert answer["ok"] is True or answer["error"]["code"] in ERRORS
        state = calls.answer({"call": "get"})
        assert state["applied_epoch"] <= state["epoch"]
        for knob in TWO_KNOBS:
            assert knob.minimum <= state["values"][knob.name] <= knob.maximum
        if state["owner"] is None:
            assert state["values"] == state["start"]


def engine_client(data: bytes) -> None:
    """What an engine sends us, with and without having greeted us first."""
    for greeted in (True, False):
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            listener.bind(str(directory / "s"))
            listener.listen()
            link = EngineLink(directory / "s", 500)
            stack.callback(link.close)
            now_ns = 10**12
            link.tick(now_ns)
            engine = stack.enter_context(closing(listener.accept()[0]))
            if greeted:
                values = {each.name: each.start for each in TWO_KNOBS}
                state = {"values": values, "start": values, "pending": {}, "epoch": 0}
                engine.sendall(encode({"id": 1, "ok": True, **HELLO.as_dict()}))
                link.on_readable(now_ns)
                more = {"applied_epoch": 0, "owner": None, "expires_in_ms": None}
                engine.sendall(encode({"id": 2, "ok": True, **state, **more}))
                link.on_readable(now_ns)
                link.set({"max_running": 4}, 1, now_ns)
            engine.sendall(data)
            engine.shutdown(socket.SHUT_WR)
            for _ in range(4):
                link.on_readable(now_ns)
                now_ns += 100 * MS
                link.tick(now_ns)
                link.read_page()
            assert link.state in LinkState
            link.take_acks()
            link.take_notices()
            link.take_votes()


def admin_http(data: bytes) -> None:
    """A request to the admin API, from somebody who may read and operate."""
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        app = admin_app(RecordedView(), operators_only(lambda: None))
        server = Server(listener, app, "localhost", 0, max_body=MAX_POLICY_BODY_BYTES)
        stack.callback(server.server_close)
        ours, theirs = (stack.enter_context(closing(each)) for each in socket.socketpair())
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        server.finish_request(ours, ("unix", 0))
        ours.shutdown(socket.SHUT_WR)
        theirs.settimeout(5)
        answer = b""
        while more := theirs.recv(1 << 16):
            answer += more
    if not answer:
        return  # an empty request has no answer
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.0 "):
        status = int(head[9:12])
        assert status < 500 or b"not supported" in body.lower() or status == 505, answer
        assert isinstance(json.loads(body), dict) or b"HEAD" in data
        lines = head.split(b"\r\n")
        assert all(line.isascii() and line.isprintable() for line in map(bytes.decode, lines))


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    each.__name__: each for each in (request_head, policy, engine_server, engine_client, admin_http)
}
