"""Spans on the wire: OpenTelemetry's exporters against a real receiver, over gRPC and HTTP."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from typing import Any

import pytest

from agent.otel import OtlpExporter
from agent.request_head import SpanRef
from agent.span_sender import SpanSender
from agent.spans import Meanwhile, Span
from agent.streams import StreamLog
from agent.tracing import Tracing
from bpf.layout import EndReason, Event, EventKind
from controller.policy_model import Otel, Slo
from tests.unit.agent.made import MS, stream

from .otlp_receiver import Protocol, Receiver, eventually, otlp_receiver

pytestmark = pytest.mark.slow

SLO = Slo(ttft_ms=50, gap_ms=20)
HEAD = (
    b"POST /v1/chat/completions?user=x HTTP/1.1\r\n"
    b"TraceParent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"
)
PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as made:
        yield made


def settings_for(endpoint: str, protocol: Protocol, **fields: Any) -> Otel:
    return Otel(endpoint=endpoint, protocol=protocol, sample_ratio=0.0, **fields)


@contextmanager
def sender_for(settings: Otel) -> Iterator[SpanSender]:
    sender = SpanSender(OtlpExporter(settings), settings.max_queue)
    try:
        yield sender
    finally:
        sender.close()


def span(number: int = 1) -> Span:
    return Span(f"test {number}", SpanRef(1, number), None, True, 1, 2, {})


@PROTOCOLS
def test_a_request_and_a_decision_arrive_with_parent_times_attributes_and_links(
    receiver: Receiver, protocol: Protocol
) -> None:
    settings = settings_for(
        receiver.endpoint(protocol), protocol, resource={"deployment.environment.name": "test"}
    )
    before_ns, began_ns = time.time_ns(), time.monotonic_ns()
    seen = stream(
        request_ns=began_ns,
        head_ns=began_ns + MS,
        first_ns=began_ns + 60 * MS,
        last_ns=began_ns + 70 * MS,
        retransmits=1,
        remote_address="2001:db8::1",
    )
    with receiver.running():
        sender = SpanSender(OtlpExporter(settings), settings.max_queue)
        tracing = Tracing(sender, 0.0, {"chat": SLO}, lambda _engine, _since: Meanwhile(pid=42))
        end = Event(began_ns + 80 * MS, EventKind.END, EndReason.COMPLETE, seen)
        tracing.stream("chat", Event(began_ns, EventKind.START, None, seen, HEAD), None)
        after_ns = time.time_ns()
        tracing.stream("chat", end, StreamLog().ended("chat", end, SLO, "batch"))
        tracing.decision(
            {
                "tag": 1,
                "mono_ns": began_ns + 90 * MS,
                "engine": "chat",
                "mode": "control",
                "cause": "batch",
                "action": [{"target": "chat", "knob": "max_running", "from": 64, "to": 32}],
                "signals": {"backpressure": 0.5},
                "reason": "steps are too long",
                "ack": "pending",
            }
        )
        tracing.ack({"tag": 1, "ack": "applied", "ack_us": 700, "detail": ""})
        tracing.close()
        assert tracing.counts().exported == 2
        request, decision = receiver.wait_for(2)

    assert request.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert request.parent_id == "b7ad6b7169203331"
    assert request.name == "POST /v1/chat/completions"
    assert request.fields["Kind"] == "SPAN_KIND_SERVER"
    assert request.fields["Status code"] == "STATUS_CODE_UNSET"
    # the caller's clock was read before ours: a child never begins before its parent
    assert before_ns <= request.start_ns <= after_ns
    assert request.end_ns - request.start_ns == 80 * MS
    assert request.events == {
        "sits.response_head": request.start_ns + MS,
        "sits.first_chunk": request.start_ns + 60 * MS,
    }
    assert (
        request.attributes.items()
        >= {
            "http.request.method": "POST",
            "url.path": "/v1/chat/completions",
            "http.response.status_code": 200,
            "server.port": 8000,
            "client.address": "2001:db8::1",
            "client.port": 40_000,
            "gen_ai.operation.name": "chat",
            "gen_ai.server.time_to_first_token": 0.06,
            "sits.engine": "chat",
            "sits.cause": "batch",
            "sits.good": False,
            "sits.kept": "slow",
            "sits.chunks": 3,
            "sits.end_reason": "complete",
            "sits.retransmits": 1,
            "ebpf.pid": 42,
            "ebpf.skb_len": 300,
            "ebpf.is_retransmit": True,
        }.items()
    )
    assert (
        request.resource.items()
        >= {
            "service.name": "sitsd",
            "service.version": version("sits"),
            "host.name": socket.gethostname(),
            "os.type": "linux",
            "deployment.environment.name": "test",
        }.items()
    )

    assert decision.name == "sits.decision"
    assert decision.parent_id == ""
    assert decision.links == [(request.trace_id, request.span_id)]
    assert decision.start_ns - request.start_ns == pytest.approx(90 * MS, abs=50 * MS)
    assert decision.end_ns - decision.start_ns == 700_000
    assert decision.attributes == {
        "sits.engine": "chat",
        "sits.mode": "control",
        "sits.cause": "batch",
        "sits.decision.action": ("chat max_running: 64 → 32",),
        "sits.decision.reason": "steps are too long",
        "sits.decision.ack": "applied",
        "sits.decision.ack_us": 700,
        "sits.signal.backpressure": 0.5,
    }


@PROTOCOLS
def test_a_collector_that_comes_back_gets_spans_again_and_what_was_dropped_is_counted(
    receiver: Receiver, protocol: Protocol
) -> None:
    settings = settings_for(receiver.endpoint(protocol), protocol, max_queue=20, timeout_ms=1000)
    with sender_for(settings) as sender:
        with receiver.running():
            sender.put(span(1))
            eventually(lambda: sender.exported)
        for number in range(2, 52):
            sender.put(span(number))
        eventually(lambda: sender.problem)
        assert sender.dropped["queue_full"] == 30
        with receiver.running():
            # those that waited, then new ones
            receiver.wait_for(21)
            eventually(lambda: not sender.problem)
            sender.put(span(99))
            found = receiver.wait_for(22)
    assert [each.name for each in found] == [f"test {n}" for n in [*range(1, 22), 99]]
    assert sender.exported == 22
    assert sender.dropped == {"queue_full": 30, "not_taken": 0, "stopped": 0}


@PROTOCOLS
def test_the_end_is_bounded_when_a_collector_takes_connections_and_says_nothing(
    protocol: Protocol,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings = settings_for(f"http://127.0.0.1:{port}", protocol, timeout_ms=60_000)
        sender = SpanSender(OtlpExporter(settings), settings.max_queue)
        sender.put(span())
        eventually(lambda: not sender._queue)
        began_s = time.monotonic()
        sender.close()
        # far below the time-out of the export
        assert time.monotonic() - began_s < 30
        assert sender.dropped["stopped"] == 1


@PROTOCOLS
def test_a_collector_that_hangs_up_meets_no_storm(protocol: Protocol) -> None:
    connections: list[None] = []

    def hang_up(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                server.accept()[0].close()
                connections.append(None)

    with socket.create_server(("127.0.0.1", 0)) as rude:
        thread = threading.Thread(target=hang_up, args=(rude,))
        thread.start()
        endpoint = f"http://127.0.0.1:{rude.getsockname()[1]}"
        try:
            with sender_for(settings_for(endpoint, protocol, timeout_ms=500)) as sender:
                end_s = time.monotonic() + 3
                while time.monotonic() < end_s:
                    sender.put(span())
                    time.sleep(0.001)
                eventually(lambda: sender.problem)
                met = len(connections)
        finally:
            rude.shutdown(socket.SHUT_RDWR)
            thread.join()
    # attempts begin after 1 s and 2 s; over HTTP each is two, and gRPC connects anew by itself
    assert 1 <= met <= 10


def test_headers_go_with_every_export_over_http_and_a_refusal_is_told() -> None:
    asked: list[tuple[str, str | None]] = []

    class Picky(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, self.headers["authorization"]))
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Picky) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/in/"
        headers = {"authorization": "Bearer 3cQ7"}
        exporter = OtlpExporter(settings_for(endpoint, "http", headers=headers))
        try:
            why = exporter.export([span()])
        finally:
            exporter.close()
            server.shutdown()
            thread.join()
    assert asked == [("/in/v1/traces", "Bearer 3cQ7")]
    assert "403" in why
    assert "3cQ7" not in why


@PROTOCOLS
def test_a_span_that_can_not_be_written_is_a_failure_and_no_exception(protocol: Protocol) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
        exporter = OtlpExporter(settings_for(f"http://127.0.0.1:{port}", protocol, timeout_ms=100))
        huge = Span("huge", SpanRef(1, 1), None, True, 1 << 70, 1 << 70, {})
        why = exporter.export([huge])
        exporter.close()
    assert why
