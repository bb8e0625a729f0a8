"""The stage that holds requests up is named, on real engines whose stages are really in the way."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.engines.reference_process import Client, Running
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import inside
from .rig import Site, Sitsd
from .traffic import engine_in, load
from .waiting import becomes

MAX_RUNNING: Final = 2
BACKLOG: Final = 4

_NEVER_ACCEPTS: Final = f"""
import socket, time
listener = socket.create_server(("127.0.0.1", 0), backlog={BACKLOG})
print(listener.getsockname()[1], flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True, slots=True)
class Throttled:
    """An engine that runs few requests at once."""

    engine: Running
    group: TwinGroup

    @property
    def targets(self) -> str:
        return f"""
[engines.chat]
cgroup = "/{self.group.cpu.name}"
admin_socket = "{self.engine.admin}"
slo = {{ ttft_ms = 60000, gap_ms = 30000 }}
"""


@pytest.fixture(scope="module")
def throttled(
    make_cgroup: MakeGroup, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Throttled]:
    group = make_cgroup("stages")
    options = ("--max-running", str(MAX_RUNNING))
    with engine_in(group, tmp_path_factory.mktemp("engine"), *options) as engine:
        yield Throttled(engine, group)


@contextmanager
def slow_reader(engine: Running, max_tokens: int) -> Iterator[socket.socket]:
    """A client that asks for a long answer and reads none of it, with room for little."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", engine.port))
        body = json.dumps(
            {"prompt": "hello", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        yield sock


def stage(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in answer["stages"] if each["stage"] == name)


def held_up(sitsd: Sitsd, name: str) -> dict[str, Any]:
    """The answer of the last seconds, once they name this stage."""

    def answer() -> dict[str, Any] | None:
        got = sitsd.api.stages("chat", 2)
        return got if got["held_up_at"] == name else None

    found = becomes(answer)
    assert found is not None
    return found


def test_readers_that_do_not_read_hold_requests_up_in_the_send_queue(
    throttled: Throttled, site: Site
) -> None:
    site.write(throttled.targets)
    with site.sitsd() as sitsd, ExitStack() as clients:
        sitsd.following()
        for _ in range(MAX_RUNNING):
            clients.enter_context(slow_reader(throttled.engine, 512))
        held_up(sitsd, "send")
        # its sockets are listed as often as that may cost, so a moment later
        becomes(lambda: sitsd.api.stages("chat", 2)["sockets"]["unsent"] == MAX_RUNNING)
        answer = held_up(sitsd, "send")
        assert stage(answer, "send")["queue"] == MAX_RUNNING
        assert stage(answer, "send")["pressure"] >= 0.3
        assert answer["sockets"]["unsent_bytes"] > 0
        assert "send queues" in answer["verdict"]
        sitsd.engine(lambda e: e["backpressure"] and e["backpressure"]["send"] == 1)
        assert sitsd.metric("sits_backpressure_ratio", engine="chat", stage="send") == 1
        assert sitsd.metric("sits_stage_queue", engine="chat", stage="send") == MAX_RUNNING


def test_an_engine_that_may_run_little_holds_requests_up_where_they_wait(
    throttled: Throttled, site: Site
) -> None:
    site.write(throttled.targets)
    with site.sitsd() as sitsd:
        sitsd.following()
        with load(throttled.engine, clients=8, max_tokens=48) as traffic:
            answer = held_up(sitsd, "waiting")
            running = stage(answer, "running")
            assert running["queue_max"] <= MAX_RUNNING
            assert stage(answer, "waiting")["queue_mean"] > MAX_RUNNING
            assert f"beside {running['queue_mean']:.3g} that run" in answer["verdict"]
        assert traffic.failures == []


def test_a_listener_that_does_not_accept_holds_requests_up_in_the_accept_queue(
    make_cgroup: MakeGroup, site: Site
) -> None:
    group = make_cgroup("deaf")
    site.write(f'[engines.chat]\ncgroup = "/{group.cpu.name}"\n')
    with ExitStack() as stack:
        command = inside(group, sys.executable, "-c", _NEVER_ACCEPTS)
        deaf = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(deaf.kill)
        assert deaf.stdout is not None
        port = int(deaf.stdout.readline())
        sitsd = stack.enter_context(site.sitsd())
        sitsd.engine(lambda e: e["ports"])
        for _ in range(BACKLOG):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
        answer = held_up(sitsd, "accept")
        assert stage(answer, "accept")["queue"] == BACKLOG
        assert answer["listeners"] == [{"port": port, "backlog": BACKLOG, "limit": BACKLOG}]
        assert answer["connections"] == []
        sitsd.engine(lambda e: e["backpressure"] and e["backpressure"]["accept"] == 1)
        assert sitsd.metric("sits_backpressure_ratio", engine="chat", stage="accept") == 1


def test_an_engine_at_rest_holds_nothing_up(throttled: Throttled, site: Site) -> None:
    site.write(throttled.targets)
    with site.sitsd() as sitsd:
        sitsd.following()
        answer = becomes(lambda: (a := sitsd.api.stages("chat", 2))["samples"] >= 3 and a)
        assert answer["held_up_at"] is None
        assert {each["stage"]: each["queue"] for each in answer["stages"]} == dict.fromkeys(
            ("accept", "receive", "waiting", "running", "send", "wire"), 0
        )
        for link in answer["links"]:
            assert link["rho"] is None
            assert "not enough variation" in link["detail"] or "too few" in link["detail"]


def test_a_connection_older_than_the_agent_is_known_at_once_and_seeded_until_its_next_request(
    throttled: Throttled, site: Site
) -> None:
    site.write(throttled.targets)
    with Client(throttled.engine) as client:
        assert client.ask("/health").status == 200
        with site.sitsd() as sitsd:
            sitsd.following()
            remote = f"127.0.0.1:{client.sock.getsockname()[1]}"

            def mine() -> dict[str, Any] | None:
                shown = sitsd.api.stages("chat")["connections"]
                return next((each for each in shown if each["remote"] == remote), None)

            found = becomes(mine)
            assert found is not None
            assert found["seeded"]
            assert sitsd.metric("sits_connections", engine="chat", seeded="true") == 1
            with Client(throttled.engine) as later:
                assert later.ask("/health").status == 200
                sitsd.engine(lambda e: e["sockets"]["connections"] == 2)
                assert sitsd.engine(lambda e: e)["sockets"]["seeded"] == 1
            fields = {"prompt": "hello", "max_tokens": 4, "stream": True}
            assert client.ask("/v1/completions", fields).status == 200
            becomes(lambda: (each := mine()) is not None and not each["seeded"])
