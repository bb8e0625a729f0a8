"""What becomes of the life of streams and decisions, seen by a collector in memory."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agent.request_head import SpanRef
from agent.span_sender import SpanSender
from agent.spans import Meanwhile, Span
from agent.streams import Ended, StreamLog
from agent.tracing import LONGEST_WAIT_NS, MAX_LINKS, MAX_OPEN_DECISIONS, Tracing
from bpf.layout import EndReason, Event, EventKind
from controller.policy_model import Slo

from .made import MS, stream
from .test_spans import CALLED, message

SLO = Slo(ttft_ms=50, gap_ms=20)
SECOND = 1_000 * MS


class Traced:
    """Tracing of an engine `chat`, and the spans it made once it is closed."""

    def __init__(self, ratio: float = 0.0) -> None:
        self.spans: list[Span] = []
        self.asked: list[tuple[str, int]] = []
        self.tracing = Tracing(SpanSender(self, 100_000), ratio, {"chat": SLO}, self._meanwhile)
        self._log = StreamLog()

    def export(self, spans: Sequence[Span]) -> str:
        self.spans += spans
        return ""

    def close(self) -> None:
        pass

    def begin(self, number: int, head: bytes = b"", **fields: Any) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\n" + head + b"\r\n"
        self.tracing.stream(
            "chat", Event(1, EventKind.START, None, stream(number=number, **fields), head), None
        )

    def first(self, number: int, **fields: Any) -> None:
        event = Event(1, EventKind.FIRST, None, stream(number=number, **fields))
        self.tracing.stream("chat", event, None)

    def end(
        self, number: int, reason: EndReason = EndReason.COMPLETE, at_ns: int = 0, **fields: Any
    ) -> None:
        event = Event(at_ns or 1_021 * MS, EventKind.END, reason, stream(number=number, **fields))
        ended: Ended = self._log.ended("chat", event, SLO, "batch")
        self.tracing.stream("chat", event, ended)

    def done(self) -> list[Span]:
        self.tracing.close()
        return self.spans

    def _meanwhile(self, engine: str, since_ns: int) -> Meanwhile:
        self.asked.append((engine, since_ns))
        return Meanwhile(pid=42)


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.tracing.close()


def called(trace_id: int, flags: int = 1) -> bytes:
    return (CALLED % (trace_id, 5)).replace(b"-01\r", b"-%02x\r" % flags)


def test_a_span_is_of_the_caller_s_trace_with_an_id_of_its_own(traced: Traced) -> None:
    traced.begin(1, called(0xAB))
    traced.end(1)
    (made,) = traced.done()
    assert made.ref.trace_id == 0xAB
    assert made.parent == SpanRef(0xAB, 5)
    assert made.ref.span_id not in {0, 5}
    assert made.attributes["sits.kept"] == "caller"
    assert made.attributes["ebpf.pid"] == 42


def test_streams_of_one_connection_have_each_its_own_caller(traced: Traced) -> None:
    for number in (1, 2, 3):
        traced.begin(number, called(number))
        traced.end(number)
    assert [each.ref.trace_id for each in traced.done()] == [1, 2, 3]


def test_a_good_stream_nobody_samples_has_no_span_and_asks_for_nothing(traced: Traced) -> None:
    traced.begin(1)
    traced.begin(2, called(7, flags=0))
    traced.end(1)
    traced.end(2)
    assert traced.done() == []
    assert traced.asked == []


def test_a_stream_whose_beginning_was_dropped_still_gets_its_span(traced: Traced) -> None:
    traced.end(1, EndReason.SERVER_CLOSED)
    (made,) = traced.done()
    assert made.name == "HTTP"
    assert made.parent is None


def test_wall_time_is_the_clock_s_and_never_before_the_caller_s(traced: Traced) -> None:
    caller_ns = time.time_ns()
    began_ns = time.monotonic_ns()
    traced.begin(1, called(1), request_ns=began_ns)
    traced.end(1, request_ns=began_ns, at_ns=time.monotonic_ns())
    after_ns = time.time_ns()
    (made,) = traced.done()
    assert caller_ns <= made.start_ns <= made.end_ns
    # the offset errs late by the time between two clock readings
    assert made.end_ns <= after_ns + 50 * MS


def test_malformed_and_cut_heads_are_counted(traced: Traced) -> None:
    traced.begin(1, b"traceparent: x\r\n")
    traced.begin(2)
    event = Event(1, EventKind.START, None, stream(number=3), b"POST / HTTP/1.1\r\ntracep")
    traced.tracing.stream("chat", event, None)
    opaque = Event(1, EventKind.START, None, stream(number=4), b"\x16\x03\x01\x02")
    traced.tracing.stream("chat", opaque, None)
    counts = traced.tracing.counts()
    assert (counts.malformed_callers, counts.cut_heads) == (1, 1)


def test_a_decision_is_linked_to_streams_that_ended_badly_just_before(traced: Traced) -> None:
    for number, at_ns in ((1, 1 * SECOND), (2, 14 * SECOND), (3, 15 * SECOND)):
        traced.begin(number)
        traced.end(number, at_ns=at_ns, gaps_over=1)
    traced.begin(4, called(4))
    traced.end(4, at_ns=15 * SECOND)
    traced.tracing.decision(message(mono_ns=16 * SECOND, ack="shadow"))
    *requests, decision = traced.done()
    refs = [each.ref for each in requests]
    assert decision.name == "sits.decision"
    assert decision.links == (refs[2], refs[1])


def test_a_decision_is_linked_to_streams_under_way_that_are_late(traced: Traced) -> None:
    now_ns = 1_100 * MS
    traced.begin(1, request_ns=now_ns - 51 * MS)
    traced.begin(2, request_ns=now_ns - 20 * MS)
    traced.begin(3)
    traced.first(3, first_ns=1_051 * MS)
    traced.begin(4)
    traced.first(4)
    traced.tracing.decision(message(mono_ns=now_ns, ack="shadow"))
    for number in (1, 2, 3, 4):
        traced.end(number)
    decision, *requests = traced.done()
    assert [each.ref for each in requests] == list(decision.links)
    assert [each.attributes["sits.kept"] for each in requests] == ["linked", "linked"]


def test_what_waited_for_ever_is_linked_to_nothing(traced: Traced) -> None:
    traced.begin(1, request_ns=1)
    traced.tracing.decision(message(mono_ns=LONGEST_WAIT_NS + 1, ack="shadow"))
    (made,) = traced.done()
    assert made.links == ()


def test_a_bad_stream_is_linked_to_the_decisions_made_meanwhile(traced: Traced) -> None:
    for at_ns in (999 * MS, 1_005 * MS, 1_030 * MS):
        traced.tracing.decision(message(mono_ns=at_ns, ack="shadow"))
    traced.end(1, gaps_over=1)
    before, meanwhile, after, request = traced.done()
    assert request.links == (meanwhile.ref,)
    assert before.ref != after.ref


def test_links_are_bounded(traced: Traced) -> None:
    for number in range(3 * MAX_LINKS):
        traced.begin(number, request_ns=number)
        traced.end(1_000 + number, at_ns=15 * SECOND, gaps_over=1)
    for _ in range(2 * MAX_LINKS):
        traced.tracing.decision(message(mono_ns=16 * SECOND, ack="shadow"))
    traced.end(5_000, request_ns=SECOND, at_ns=17 * SECOND, gaps_over=1)
    assert {len(each.links) for each in traced.done()} == {0, MAX_LINKS}


def test_a_decision_waits_for_its_last_answer(traced: Traced) -> None:
    traced.tracing.decision(message(tag=1))
    traced.tracing.ack({"tag": 1, "ack": "pending", "ack_us": 100, "detail": ""})
    traced.tracing.ack({"tag": 1, "ack": "applied", "ack_us": 900, "detail": ""})
    traced.tracing.ack({"tag": 1, "ack": "refused", "ack_us": 999, "detail": ""})
    traced.tracing.ack({"tag": 9, "ack": "applied", "ack_us": 1, "detail": ""})
    (made,) = traced.done()
    assert made.attributes["sits.decision.ack"] == "applied"
    assert made.end_ns - made.start_ns == 900_000


def test_under_another_policy_its_engines_are_followed_and_those_that_stay_go_on(
    traced: Traced,
) -> None:
    traced.begin(1)
    traced.tracing.set_slos({"chat": Slo(ttft_ms=1, gap_ms=1), "code": SLO})
    traced.end(1, gaps_over=1)
    event = Event(1, EventKind.START, None, stream(number=2), b"")
    traced.tracing.stream("code", event, None)
    (span,) = traced.done()
    assert span.attributes["url.path"] == "/v1/completions"


def test_a_controller_that_died_leaves_its_decisions_lost(traced: Traced) -> None:
    traced.tracing.decision(message(tag=1))
    traced.tracing.forget_open()
    traced.tracing.decision(message(tag=1))
    acks = [each.attributes["sits.decision.ack"] for each in traced.done()]
    assert acks == ["lost", "pending"]


def test_decisions_that_wait_are_bounded(traced: Traced) -> None:
    for tag in range(MAX_OPEN_DECISIONS + 3):
        traced.tracing.decision(message(tag=tag))
    traced.tracing.forget_open()
    acks = [each.attributes["sits.decision.ack"] for each in traced.done()]
    assert acks == ["pending"] * 3 + ["lost"] * MAX_OPEN_DECISIONS


def test_a_decision_for_an_engine_that_is_gone_is_sent_too(traced: Traced) -> None:
    traced.tracing.decision(message(engine="gone", ack="shadow"))
    (made,) = traced.done()
    assert made.links == ()


def test_an_injection_is_a_span_until_it_is_to_end(traced: Traced) -> None:
    began_ns = time.time_ns()
    traced.tracing.injection(0.8, 5, "a \x1b drill")
    (span,) = traced.done()
    assert (span.name, span.parent) == ("sits.injection", None)
    assert began_ns <= span.start_ns <= time.time_ns()
    assert span.end_ns - span.start_ns == 5_000_000_000
    assert span.attributes == {
        "sits.injection.backpressure": 0.8,
        "sits.injection.reason": "a \\x1b drill",
    }


def test_an_agent_without_a_collector_loads_nothing_of_opentelemetry() -> None:
    program = """
import sys
import agent.daemon
from agent.tracing import start_tracing
from controller.policy_model import Policy
assert start_tracing(Policy(), None) == (None, "")
heavy = {"opentelemetry", "grpc", "requests", "urllib3", "google"}
print(*sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_agent_loads_only_the_protocol_it_uses(protocol: str) -> None:
    program = f"""
import sys
from agent.tracing import start_tracing
from controller.policy_model import Otel, Policy
otel = Otel(endpoint="http://127.0.0.1:9", protocol="{protocol}")
tracing, problem = start_tracing(Policy(otel=otel), None)
assert problem == "", problem
tracing.close()
print(*sorted({{"grpc", "requests"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["grpc" if protocol == "grpc" else "requests"]


def test_a_package_that_is_missing_is_a_problem_and_not_an_end() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from agent.tracing import start_tracing
from controller.policy_model import Otel, Policy
tracing, problem = start_tracing(Policy(otel=Otel(endpoint="http://127.0.0.1:9")), None)
assert tracing is None
print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("no spans are made: ")
    assert "docs/tracing.md says what to install" in done.stdout
