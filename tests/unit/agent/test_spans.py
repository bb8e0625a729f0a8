"""The span of a request and of a decision, from what the kernel and the controller said."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.request_head import SpanRef, read_head
from agent.spans import Beginning, Meanwhile, Span, decision_span, request_span, why_kept
from agent.streams import Ended, StreamLog
from bpf.layout import EndReason, StreamFlags
from controller.policy_model import Slo

from .made import MS, end, stream

SLO = Slo(ttft_ms=50, gap_ms=20)
OFFSET_NS = 1_700_000_000 * 10**9
REF = SpanRef(7, 8)
CALLED = b"traceparent: 00-%032x-%016x-01\r\n"
SAMPLED = b"traceparent: 00-%032x-%016x-01\r\n" % (0xA, 0xB)
UNSAMPLED = b"traceparent: 00-%032x-%016x-00\r\n" % (0xA, 0xB)
BEGAN_NS = 1_000 * MS
NOTHING = Meanwhile()

times = st.integers(0, 4_000 * MS)


def beginning(more: bytes = b"", line: bytes = b"POST /v1/completions HTTP/1.1") -> Beginning:
    return Beginning(REF, read_head(line + b"\r\n" + more + b"\r\n"), OFFSET_NS)


def ended(reason: EndReason | None = EndReason.COMPLETE, **fields: Any) -> Ended:
    at_ns = fields.pop("at_ns", BEGAN_NS + 21 * MS)
    return StreamLog().ended("chat", end(reason, at_ns, **fields), SLO, "batch")


def span(more: bytes = b"", meanwhile: Meanwhile = NOTHING, **fields: Any) -> Span:
    return request_span(ended(**fields), beginning(more), "ratio", meanwhile)


def test_a_good_stream_in_full() -> None:
    made = span(
        SAMPLED,
        Meanwhile(pid=42, wait_ns=3 * MS),
        retransmits=2,
        blocked_ns=4 * MS,
        rwnd_limited_ms=3,
    )
    assert made == Span(
        name="POST /v1/completions",
        ref=REF,
        parent=SpanRef(0xA, 0xB),
        server=True,
        start_ns=OFFSET_NS + BEGAN_NS,
        end_ns=OFFSET_NS + BEGAN_NS + 21 * MS,
        attributes={
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "http.route": "/v1/completions",
            "url.path": "/v1/completions",
            "url.scheme": "http",
            "network.protocol.name": "http",
            "server.port": 8000,
            "client.address": "127.0.0.1",
            "client.port": 40_000,
            "gen_ai.operation.name": "text_completion",
            "gen_ai.server.time_to_first_token": 0.01,
            "sits.engine": "chat",
            "sits.kept": "ratio",
            "sits.good": True,
            "sits.cause": "none",
            "sits.end_reason": "complete",
            "sits.streaming": True,
            "sits.chunks": 3,
            "sits.gap_max_ms": 5.0,
            "sits.gap_mean_ms": 5.0,
            "sits.gaps_over_slo": 0,
            "sits.write_gap_max_ms": 5.0,
            "sits.events": 3,
            "sits.role_frames": 0,
            "sits.send_blocked_ms": 4.0,
            "sits.send_blocked_by_client_ms": 3,
            "sits.send_blocked_by_buffer_ms": 0,
            "sits.retransmits": 2,
            "sits.run_queue_delay_ms": 3.0,
            "sits.stage.read_ms": 1e-6,
            "sits.stage.head_ms": 1e-6,
            "sits.stage.first_chunk_ms": 10 - 1e-6,
            "sits.stage.chunks_ms": 10.0,
            "ebpf.pid": 42,
            "ebpf.skb_len": 300,
            "ebpf.is_retransmit": True,
        },
        events=made.events,
    )
    assert [(each.name, each.at_ns - OFFSET_NS - BEGAN_NS) for each in made.events] == [
        ("sits.response_head", 1),
        ("sits.first_chunk", 10 * MS),
    ]


def test_a_slow_stream_says_why() -> None:
    attributes = span(gaps_over=2).attributes
    assert attributes["sits.good"] is False
    assert attributes["sits.cause"] == "batch"
    assert attributes["sits.gaps_over_slo"] == 2


def test_without_a_caller_there_is_no_parent() -> None:
    assert span().parent is None
    assert span(b"traceparent: nonsense\r\n").parent is None


def test_a_path_of_a_caller_s_own_is_in_no_name() -> None:
    made = request_span(ended(), beginning(line=b"POST /mine/4711 HTTP/1.1"), "ratio", NOTHING)
    assert made.name == "POST"
    assert made.attributes["url.path"] == "/mine/4711"
    assert "http.route" not in made.attributes
    assert "gen_ai.operation.name" not in made.attributes


def test_a_request_whose_beginning_is_unknown_still_has_a_name() -> None:
    made = request_span(ended(), beginning(line=b""), "slow", NOTHING)
    assert made.name == "HTTP"
    assert not {"url.path", "url.scheme", "http.request.method"} & set(made.attributes)


def test_a_method_of_a_caller_s_own_is_in_no_name() -> None:
    made = request_span(ended(), beginning(line=b"BREW /v1/completions HTTP/1.1"), "slow", NOTHING)
    assert made.name == "HTTP /v1/completions"
    assert made.attributes["http.request.method"] == "_OTHER"


def test_what_is_not_known_is_left_out() -> None:
    attributes = span(
        head_ns=0,
        first_ns=0,
        last_ns=0,
        read_ns=0,
        write_gap_max_ns=0,
        chunks=0,
        status=0,
        reason=EndReason.CLIENT_RESET,
    ).attributes
    assert not {
        "http.response.status_code",
        "gen_ai.server.time_to_first_token",
        "sits.gap_max_ms",
        "sits.gap_mean_ms",
        "sits.run_queue_delay_ms",
        "sits.stage.head_ms",
        "sits.stage.read_ms",
        "sits.write_gap_max_ms",
        "ebpf.pid",
    } & set(attributes)


@pytest.mark.parametrize(
    ("fields", "error", "failed"),
    [
        ({}, None, ""),
        ({"status": 404}, None, ""),
        ({"status": 503}, "503", "503"),
        ({"reason": EndReason.SERVER_CLOSED}, "server_closed", "server_closed"),
        ({"reason": EndReason.CLIENT_RESET}, "client_reset", ""),
        ({"reason": EndReason.CLOSED}, "closed", ""),
        ({"reason": EndReason.LOST}, None, ""),
        ({"reason": EndReason.SERVER_CLOSED, "status": 500}, "500", "500"),
    ],
)
def test_a_span_fails_when_the_engine_did(
    fields: dict[str, Any], error: str | None, failed: str
) -> None:
    made = span(**fields)
    assert made.attributes.get("error.type") == error
    assert made.failed == failed


@given(times, times, times, times, times)
def test_no_event_lies_outside_its_span_whatever_the_times(
    request_ns: int, head_ns: int, first_ns: int, last_ns: int, at_ns: int
) -> None:
    made = span(
        request_ns=request_ns, head_ns=head_ns, first_ns=first_ns, last_ns=last_ns, at_ns=at_ns + 1
    )
    assert made.start_ns == OFFSET_NS + request_ns
    assert made.end_ns >= made.start_ns
    assert all(made.start_ns <= each.at_ns <= made.end_ns for each in made.events)
    stages = [value for name, value in made.attributes.items() if name.startswith("sits.stage")]
    assert all(isinstance(value, float) and value >= 0 for value in stages)


def test_times_that_were_moved_are_said_to_be() -> None:
    assert "sits.times_clamped" not in span().attributes
    assert span(head_ns=BEGAN_NS - 1).attributes["sits.times_clamped"] is True
    assert span(at_ns=BEGAN_NS - 1).attributes["sits.times_clamped"] is True


@settings(deadline=None)
@given(st.binary(max_size=256))
def test_no_head_breaks_a_span(head: bytes) -> None:
    made = request_span(ended(), Beginning(REF, read_head(head), OFFSET_NS), "slow", NOTHING)
    assert len(made.name) < 80
    for value in (made.name, *made.attributes.values()):
        if isinstance(value, str):
            assert value.isprintable()
            value.encode()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("more", [b"", SAMPLED, UNSAMPLED])
def test_what_missed_its_slo_is_always_kept(more: bytes, ratio: float) -> None:
    bad = [
        ended(gaps_over=1),
        ended(status=500),
        ended(EndReason.CLIENT_RESET),
        ended(first_ns=BEGAN_NS + 51 * MS),
    ]
    assert {why_kept(each, beginning(more), ratio) for each in bad} == {"slow"}


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_caller_decides_for_a_good_one(ratio: float) -> None:
    assert why_kept(ended(), beginning(SAMPLED), ratio) == "caller"
    assert why_kept(ended(), beginning(UNSAMPLED), ratio) is None


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_ratio_keeps_what_a_smaller_one_does(
    trace_id: int, one: float, other: float
) -> None:
    drawn = Beginning(SpanRef(trace_id, 1), read_head(b""), 0)
    smaller, larger = sorted((one, other))
    if why_kept(ended(), drawn, smaller) is not None:
        assert why_kept(ended(), drawn, larger) == "ratio"
    assert why_kept(ended(), drawn, 0.0) is None
    assert why_kept(ended(), drawn, 1.0) == "ratio"


def test_a_plain_answer_that_is_complete_is_good() -> None:
    plain = ended(first_ns=0, chunks=0, flags=StreamFlags.LENGTH)
    assert why_kept(plain, beginning(), 0.0) is None


def message(**fields: Any) -> dict[str, Any]:
    change = {"kind": "knob", "target": "chat", "knob": "max_running", "from": 64, "to": 32}
    given_: dict[str, Any] = {
        "tag": 1,
        "mono_ns": BEGAN_NS,
        "engine": "chat",
        "mode": "control",
        "cause": "batch",
        "action": [change],
        "signals": {"backpressure": 0.5, "note": "text", "nothing": None},
        "reason": "steps are too long",
        "ack": "pending",
    }
    return given_ | fields


def test_a_decision_in_full() -> None:
    made = decision_span(message(), "applied", 700, REF, OFFSET_NS, (SpanRef(1, 2),))
    assert made == Span(
        name="sits.decision",
        ref=REF,
        parent=None,
        server=False,
        start_ns=OFFSET_NS + BEGAN_NS,
        end_ns=OFFSET_NS + BEGAN_NS + 700_000,
        attributes={
            "sits.engine": "chat",
            "sits.mode": "control",
            "sits.cause": "batch",
            "sits.decision.action": ("chat max_running: 64 → 32",),
            "sits.decision.reason": "steps are too long",
            "sits.decision.ack": "applied",
            "sits.decision.ack_us": 700,
            "sits.signal.backpressure": 0.5,
        },
        links=(SpanRef(1, 2),),
    )


@pytest.mark.parametrize("ack", ["refused", "lost"])
def test_a_decision_that_was_not_carried_out_fails(ack: str) -> None:
    made = decision_span(message(), ack, None, REF, OFFSET_NS, ())
    assert made.failed == ack
    assert made.start_ns == made.end_ns
    assert "sits.decision.ack_us" not in made.attributes


def test_a_stream_of_one_chunk_has_no_gap() -> None:
    one = stream(chunks=1, gap_sum_ns=0, gap_max_ns=0)
    assert one.first_ns
    assert "sits.gap_mean_ms" not in span(chunks=1, gap_sum_ns=0, gap_max_ns=0).attributes
