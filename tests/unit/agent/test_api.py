"""The API's routing and checks, called as a WSGI application."""

import io
import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.agent_view import ApiError, JsonObject
from agent.api import MAX_BODY_BYTES, MAX_POLICY_BODY_BYTES, Gate, admin_app
from tests.unit.agent.recorded import CANARY, STATUS, UNSEEN, RecordedView, anyone


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    json: Any


def ask(
    view: RecordedView,
    path: str,
    query: str = "",
    method: str = "GET",
    body: bytes | None = None,
    length: str | None = None,
    gate: Gate = anyone,
) -> Answer:
    seen: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> Any:
        seen["status"], seen["headers"] = int(status[:3]), dict(headers)

    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "wsgi.input": io.BytesIO(body or b""),
        "CONTENT_LENGTH": length if length is not None else "" if body is None else str(len(body)),
    }
    content = b"".join(admin_app(view, gate)(environ, start_response))
    assert int(seen["headers"]["Content-Length"]) == len(content)
    return Answer(seen["status"], seen["headers"], json.loads(content))


def set_mode(view: RecordedView, body: bytes, length: str | None = None) -> Answer:
    return ask(view, "/v1/mode", method="POST", body=body, length=length)


@pytest.fixture
def view() -> RecordedView:
    return RecordedView()


@pytest.fixture
def two(view: RecordedView) -> RecordedView:
    """A view of two engines, chat and draft."""
    view.state["engines"].append(UNSEEN)
    return view


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("status", RecordedView().status()),
        ("engines", RecordedView().engines()),
        ("policy", RecordedView().policy()),
        ("doctor", RecordedView().doctor()),
        ("journal", RecordedView().journal(20, None, None, "newest")),
        ("streams", RecordedView().streams(None, None, 100)),
    ],
)
def test_a_call_answers_what_the_view_says(
    view: RecordedView, call: str, expected: JsonObject
) -> None:
    answer = ask(view, f"/v1/{call}")
    assert (answer.status, answer.json) == (200, expected)
    assert answer.headers["Content-Type"] == "application/json"


def test_the_view_gets_the_parameters_that_were_given(view: RecordedView) -> None:
    ask(view, "/v1/streams", "engine=chat&after=0&limit=5")
    ask(view, "/v1/explain", "engine=chat&seconds=1.1938450999997")
    ask(view, "/v1/stages", "engine=chat&seconds=2&factor=2.5&floor=100")
    ask(view, "/v1/journal", "limit=7&engine=gone&before=12")
    ask(view, "/v1/journal", "order=worst")
    set_mode(view, b'{"mode": "shadow", "reason": "a try"}')
    assert view.asked == [
        ("streams", "chat", 0, 5),
        ("explain", "chat", 1.1938450999997),
        ("stages", "chat", 2.0, 2.5, 100.0),
        ("journal", 7, "gone", 12, "newest"),
        ("journal", 20, None, None, "worst"),
        ("set_mode", "shadow", "a try"),
    ]


def post(view: RecordedView, call: str, body: bytes = b"{}") -> Answer:
    return ask(view, f"/v1/{call}", method="POST", body=body)


def test_calls_about_the_policy_get_what_was_sent(view: RecordedView) -> None:
    post(view, "policy/diff", b'{"text": "a = 1", "source": "x.toml"}')
    post(view, "policy/apply", b'{"text": "", "source": "x\\u001b.toml", "temporary": "true"}')
    post(view, "policy/apply", b'{"text": ""}')
    post(view, "policy/reload")
    post(view, "policy/apply", b'{"text": "", "canary_s": "180", "engine": "chat"}')
    post(view, "policy/apply", b'{"text": "", "canary_s": "36.5"}')
    post(view, "policy/abort", b'{"reason": "a try"}')
    post(view, "policy/abort")
    assert view.asked == [
        ("diff", "a = 1", "x.toml"),
        ("apply", "", "x\\x1b.toml", True),
        ("apply", "", "policy", False),
        ("reload",),
        ("try_out", "", "policy", 180.0, "chat"),
        ("try_out", "", "policy", 36.5, None),
        ("abort", "a try"),
        ("abort", ""),
    ]
    view.policies.canary = CANARY
    assert ask(view, "/v1/policy/status").json["canary"] == CANARY


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "parameter text, the policy in TOML, is needed"),
        (b'{"text": "", "temporary": "yes"}', "temporary is true or false, not 'yes'"),
        (b'{"text": "", "source": "%s"}' % (b"x" * 1001), "source is at most 1000 characters"),
        (b'{"text": "", "canary": "1"}', "takes no parameter 'canary'"),
        (b'{"text": "", "canary_s": "35"}', "canary_s is a number from 36 to 3600, not '35'"),
        (b'{"text": "", "engine": "chat"}', "parameter engine goes with canary_s"),
        (
            b'{"text": "", "canary_s": "36", "temporary": "true"}',
            "parameter temporary does not go with canary_s",
        ),
    ],
)
def test_a_wrong_call_about_the_policy_is_refused(
    view: RecordedView, body: bytes, why: str
) -> None:
    answer = post(view, "policy/apply", body)
    assert (answer.status, view.asked) == (400, [])
    assert why in answer.json["error"]


def test_calls_about_knobs_get_what_was_sent(two: RecordedView) -> None:
    body = b'{"values": "max_running=8\\nkv_cache_ratio=0.5", "engines": "chat\\ndraft",'
    post(two, "set", body + b' "lease_s": "90", "reason": "why"}')
    post(two, "set", b'{"values": "max_running=8", "engines": "chat", "reason": "why"}')
    assert post(two, "release").json == {"engines": ["chat"]}
    post(two, "release", b'{"engines": "draft", "reason": "enough"}')
    assert two.asked == [
        ("set", ["chat", "draft"], {"max_running": 8.0, "kv_cache_ratio": 0.5}, 90.0, "why"),
        ("set", ["chat"], {"max_running": 8.0}, 60.0, "why"),
        ("release", [], "an operator gave it back"),
        ("release", ["draft"], "enough"),
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"values": "max_running=8"}', "parameter reason is needed"),
        (b'{"reason": "r"}', "parameter values, KNOB=NUMBER a line, is needed"),
        (b'{"reason": "r", "values": "speed=8"}', "no knob 'speed': there is max_running, "),
        (b'{"reason": "r", "values": "max_running=many"}', "a number, not 'many'"),
        (b'{"reason": "r", "values": "max_running=1\\nmax_running=2"}', "is given twice"),
        (b'{"reason": "r", "values": "max_running=1", "engines": "x"}', "no engine 'x'"),
        (b'{"reason": "r", "values": "max_running=1", "lease_s": "0"}', "from 1 to 86400"),
    ],
)
def test_a_wrong_call_about_knobs_is_refused(view: RecordedView, body: bytes, why: str) -> None:
    answer = post(view, "set", body)
    assert answer.status in {400, 404}
    assert why in answer.json["error"]
    assert view.asked == []


def test_a_policy_may_be_longer_than_another_body(view: RecordedView) -> None:
    text = "#" * (MAX_POLICY_BODY_BYTES - 100)
    assert post(view, "policy/diff", json.dumps({"text": text}).encode()).status == 200
    assert view.asked == [("diff", text, "policy")]
    assert post(view, "policy/diff", b"x" * (MAX_POLICY_BODY_BYTES + 1)).status == 413


def test_parameters_left_out_have_defaults(view: RecordedView) -> None:
    for call in ("streams", "explain", "stages", "journal"):
        ask(view, f"/v1/{call}")
    assert view.asked == [
        ("streams", None, None, 100),
        ("explain", "chat", 30.0),
        ("stages", "chat", 30.0, 1.5, None),
        ("journal", 20, None, None, "newest"),
    ]


def test_explain_without_an_engine_needs_there_to_be_one(two: RecordedView) -> None:
    answer = ask(two, "/v1/explain")
    assert (answer.status, two.asked) == (400, [])
    assert "engine" in answer.json["error"]
    assert "chat, draft" in answer.json["error"]


def test_explain_without_any_engine_says_so(view: RecordedView) -> None:
    view.state["engines"] = []
    answer = ask(view, "/v1/explain")
    assert (answer.status, "has no engines" in answer.json["error"]) == (404, True)


@pytest.mark.parametrize("call", ["streams", "explain"])
def test_an_unknown_engine_is_answered_with_those_there_are(two: RecordedView, call: str) -> None:
    answer = ask(two, f"/v1/{call}", "engine=chot")
    assert (answer.status, two.asked) == (404, [])
    assert answer.json["error"] == "no engine 'chot': there is chat, draft"


@pytest.mark.parametrize(
    ("call", "query", "words"),
    [
        ("streams", "limit=0", ["limit", "1 to 10000", "'0'"]),
        ("streams", "limit=10001", ["limit", "1 to 10000"]),
        ("streams", "limit=1_0", ["limit", "'1_0'"]),
        ("streams", "limit=%D9%A1", ["limit", "whole number"]),
        ("streams", "limit=", ["limit", "''"]),
        ("streams", "after=-1", ["after", "0 to"]),
        ("streams", "after=" + "9" * 5000, ["after", "…"]),
        ("explain", "seconds=0", ["seconds", "1 to 3600", "'0'"]),
        ("explain", "seconds=nan", ["seconds", "'nan'"]),
        ("explain", "seconds=1e3", ["seconds"]),
        ("explain", "seconds=3601", ["seconds"]),
        ("stages", "seconds=61", ["seconds", "1 to 60"]),
        ("stages", "factor=0.5", ["factor", "1 to 1000"]),
        ("stages", "floor=-1", ["floor", "'-1'"]),
        ("journal", "before=0", ["before"]),
        ("journal", "limit=1001", ["limit", "1 to 1000"]),
        ("journal", "order=best", ["newest, worst", "'best'"]),
        ("journal", "order=worst&before=3", ["before"]),
        ("streams", "limit=1&limit=2", ["limit", "twice"]),
        ("streams", "limi=1", ["'limi'", "engine, after, limit"]),
        ("status", "engine=chat", ["'engine'", "none"]),
        ("streams", "limit", ["query"]),
        ("streams", "engine=%ff", ["query", "UTF-8"]),
        ("streams", "&".join(["limit=1"] * 30), ["query"]),
    ],
)
def test_a_wrong_query_is_refused_naming_what_is_allowed(
    view: RecordedView, call: str, query: str, words: list[str]
) -> None:
    answer = ask(view, f"/v1/{call}", query)
    assert (answer.status, view.asked) == (400, [])
    for word in words:
        assert word in answer.json["error"]


def test_an_unknown_call_is_answered_with_those_there_are(view: RecordedView) -> None:
    answer = ask(view, "/v1/stats\x1b[2J")
    assert answer.status == 404
    assert "'/v1/stats\\x1b[2J'" in answer.json["error"]
    assert "/v1/status" in answer.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "/v1/status", "GET"), ("GET", "/v1/mode", "POST"), ("BREW", "/v1/engines", "GET")],
)
def test_a_wrong_method_is_answered_with_the_right_one(
    view: RecordedView, method: str, path: str, allowed: str
) -> None:
    answer = ask(view, path, method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)
    assert f"takes {allowed}, not {method}" in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "length", "status", "words"),
    [
        (b"", None, 400, "not JSON"),
        (b"{", None, 400, "not JSON"),
        (b"\xff", None, 400, "not JSON"),
        (b"[" * MAX_BODY_BYTES, None, 400, "not JSON"),
        (b"[]", None, 400, "object of strings"),
        (b'{"mode": 1}', None, 400, "object of strings"),
        (b"{}", None, 400, "mode is one of observe, shadow, control, not ''"),
        (b'{"mode": "contrl"}', None, 400, "not 'contrl'"),
        (b'{"mode": "control", "why": "x"}', None, 400, "'why'; it takes mode, reason"),
        (b'{"mode": "control", "reason": "' + b"x" * 501 + b'"}', None, 400, "500 characters"),
        (b"x" * (MAX_BODY_BYTES + 1), None, 413, f"{MAX_BODY_BYTES} bytes"),
        (b"{}", "3", 400, "shorter"),
        (b"{}", "", 411, "Content-Length"),
        (b"{}", "-2", 411, "Content-Length"),
        (b"{}", "two", 411, "Content-Length"),
    ],
)
def test_a_wrong_body_is_refused_and_changes_nothing(
    view: RecordedView, body: bytes, length: str | None, status: int, words: str
) -> None:
    answer = set_mode(view, body, length)
    assert (answer.status, view.asked) == (status, [])
    assert words in answer.json["error"]


def test_an_error_of_the_view_is_passed_on(view: RecordedView) -> None:
    view.raises = ApiError(409, "the controller is not running")
    answer = set_mode(view, b'{"mode": "control"}')
    assert (answer.status, answer.json) == (409, {"error": "the controller is not running"})


def test_a_fault_in_the_view_is_logged_and_not_shown(
    view: RecordedView, caplog: pytest.LogCaptureFixture
) -> None:
    view.raises = RuntimeError("secret")
    with caplog.at_level(logging.ERROR, "sits.api"):
        answer = ask(view, "/v1/status")
    assert (answer.status, "secret" in json.dumps(answer.json)) == (500, False)
    assert "could not answer /v1/status" in caplog.text
    assert "secret" in caplog.text


def test_what_is_not_a_number_is_sent_as_not_known(view: RecordedView) -> None:
    view.state = STATUS | {"uptime_s": float("nan"), "deep": [{"x": float("inf")}]}
    answer = ask(view, "/v1/status")
    assert (answer.json["uptime_s"], answer.json["deep"]) == (None, [{"x": None}])


def test_text_that_is_not_unicode_arrives(view: RecordedView) -> None:
    view.state["problems"] = ["\udcff\x1b"]
    assert ask(view, "/v1/status").json["problems"] == ["\udcff\x1b"]


# No deadline: a busy machine is no fault.
@settings(deadline=None)
@given(
    path=st.sampled_from(["/v1/status", "/v1/streams", "/v1/explain", "/v1/journal", "/v1/mode"])
    | st.text(st.characters(max_codepoint=255)),
    query=st.text(st.characters(max_codepoint=255)),
    method=st.sampled_from(["GET", "POST", "HEAD", ""]),
    body=st.binary(max_size=200),
    length=st.none() | st.text(max_size=5),
)
def test_no_request_makes_the_api_fail(
    path: str, query: str, method: str, body: bytes, length: str | None
) -> None:
    assert ask(RecordedView(), path, query, method, body, length).status in {
        200, 400, 404, 405, 411, 413,
    }  # fmt: skip


def test_what_changes_something_asks_the_gate_first_and_what_reads_does_not() -> None:
    def closed(environ: Any) -> None:
        raise ApiError(403, "closed")

    view, seen = RecordedView(), {}
    calls = ask(view, "/").json["error"].partition("there is ")[2].split(", ")
    for path in calls:
        for method in ("GET", "POST"):
            status = ask(view, path, method=method, body=b"not even JSON", gate=closed).status
            if status != 405:
                seen[path] = (method, status == 403)
    assert {path for path, (_, closed_to_all) in seen.items() if closed_to_all} == {
        path for path, (method, _) in seen.items() if method == "POST"
    } - {"/v1/policy/diff"}
    assert len(seen) == len(calls) > 12
