"""The admin API: what sitsctl asks of the agent, as a WSGI application over a view of it.

JSON over HTTP on a Unix socket. `AgentView` is what answers; nothing here knows how. What is asked
is checked here, so a view gets only values its methods allow.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from agent.agent_view import AgentView, ApiError, JsonObject, Order
from agent.api_values import body_of, known, number, query_of, shown, switch, whole
from agent.http import answer_json
from agent.stages import FACTOR
from controller.engines.contract import KNOBS
from controller.plain import plain
from controller.policy import MAX_POLICY_BYTES
from controller.policy_model import Mode

MAX_BODY_BYTES: Final = 16 * 1024
MAX_POLICY_BODY_BYTES: Final = 2 * MAX_POLICY_BYTES
"""Of a call that sends a policy: in JSON its line ends and quotes are two bytes each."""

MAX_STREAMS: Final = 10_000
MAX_DECISIONS: Final = 1000
MAX_EXPLAIN_S: Final = 3600.0
MAX_STAGES_S: Final = 60.0
MAX_FACTOR: Final = 1000.0
MAX_FLOOR: Final = 1e9
MAX_REASON_CHARS: Final = 500
MAX_SOURCE_CHARS: Final = 1000
MAX_LEASE_S: Final = 86_400.0
"""Of a change by hand."""

MAX_INJECTION_S: Final = 600.0

SHORTEST_S: Final = 36.0
LONGEST_S: Final = 3600.0
"""Of a canary."""


_MAX_ID: Final = (1 << 63) - 1
_MODES: Final[tuple[Mode, ...]] = get_args(Mode)
_ORDERS: Final[tuple[Order, ...]] = get_args(Order)
_LOG: Final = logging.getLogger("sits.api")


Handler = Callable[[AgentView, Mapping[str, str]], JsonObject]
Gate = Callable[[WSGIEnvironment], None]
"""Lets a request that changes something through, or raises `ApiError` 403."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: its method, the parameters (of query or body) it takes, and what answers it.

    A POST is for those who may operate, unless it only `reads`.
    """

    method: str
    parameters: tuple[str, ...]
    handle: Handler
    max_body: int = MAX_BODY_BYTES
    reads: bool = False


def admin_app(view: AgentView, gate: Gate) -> WSGIApplication:
    """The API over `view`. It never raises: what goes wrong inside is logged and answered 500.

    `gate` is asked before anything is changed.
    """

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        headers: list[tuple[str, str]] = []
        try:
            status, answer = 200, _answer(view, gate, environ, headers)
        except ApiError as error:
            status, answer = error.status, {"error": error.message}
        except Exception:
            _LOG.exception("could not answer %s", plain(str(environ.get("PATH_INFO"))))
            status, answer = 500, {"error": "internal error; the agent's log has more"}
        return answer_json(start_response, status, answer, headers)

    return app


def _answer(
    view: AgentView, gate: Gate, environ: WSGIEnvironment, headers: list[tuple[str, str]]
) -> JsonObject:
    """What the view says; `headers` gets those that go with a refusal."""
    path, method = str(environ.get("PATH_INFO", "")), str(environ.get("REQUEST_METHOD", ""))
    call = _CALLS.get(path)
    if call is None:
        raise ApiError(404, f"no such call {shown(path)}: there is {', '.join(_CALLS)}")
    if method != call.method:
        headers.append(("Allow", call.method))
        raise ApiError(405, f"{path} takes {call.method}, not {plain(method)[:20]}")
    query = query_of(str(environ.get("QUERY_STRING", "")))
    if method == "GET":
        return _finite(call.handle(view, known(query, call.parameters, path)))
    if not call.reads:
        gate(environ)
    known(query, (), path)
    body = body_of(environ, call.max_body)
    return _finite(call.handle(view, known(body, call.parameters, path)))


def _order(values: Mapping[str, str]) -> Order:
    wanted = values.get("order", "newest")
    order = next((order for order in _ORDERS if order == wanted), None)
    if order is None:
        raise ApiError(400, f"order is one of {', '.join(_ORDERS)}, not {shown(wanted)}")
    if order == "worst" and "before" in values:
        raise ApiError(400, "parameter before is for the newest decisions, not for the worst")
    return order


def _engine(view: AgentView, values: Mapping[str, str]) -> str | None:
    """The engine asked for, if one was, which the view knows."""
    name = values.get("engine")
    if name is not None and name not in (names := _engine_names(view)):
        raise ApiError(404, f"no engine {shown(name)}: {_offer(names)}")
    return name


def _one_engine(view: AgentView, values: Mapping[str, str]) -> str:
    """The engine asked for, or the only one there is."""
    if (name := _engine(view, values)) is not None:
        return name
    names = _engine_names(view)
    if len(names) != 1:
        raise ApiError(400 if names else 404, f"parameter engine is needed: {_offer(names)}")
    return names[0]


def _engine_names(view: AgentView) -> list[str]:
    return [item["name"] for item in view.engines()["engines"]]


def _offer(names: Sequence[str]) -> str:
    return f"there is {', '.join(names)}" if names else "the policy has no engines"


def _set_mode(view: AgentView, values: Mapping[str, str]) -> JsonObject:
    wanted, reason = values.get("mode", ""), _reason(values)
    mode = next((mode for mode in _MODES if mode == wanted), None)
    if mode is None:
        raise ApiError(400, f"mode is one of {', '.join(_MODES)}, not {shown(wanted)}")
    return view.set_mode(mode, reason)


def _inject(view: AgentView, values: Mapping[str, str]) -> JsonObject:
    if (what := values.get("what", "")) != "backpressure":
        raise ApiError(400, f"what can be injected is backpressure, not {shown(what)}")
    value = number(values, "value", None, 0, 1)
    if value is None:
        raise ApiError(400, "parameter value, 0 to 1, is needed")
    seconds = number(values, "seconds", 5.0, 0.001, MAX_INJECTION_S)
    return view.inject(value, seconds, _reason(values))


def _set_knobs(view: AgentView, values: Mapping[str, str]) -> JsonObject:
    reason = _reason(values)
    if not reason:
        raise ApiError(400, "parameter reason is needed: the journal keeps it")
    lease_s = number(values, "lease_s", 60.0, 1, MAX_LEASE_S)
    return view.changes.ask(_engines(view, values), _knob_values(values), lease_s, reason)


def _engines(view: AgentView, values: Mapping[str, str]) -> list[str]:
    """The engines asked for, a name a line; the only one there is, if none is."""
    names = [name for name in values.get("engines", "").split("\n") if name]
    if not names:
        return [_one_engine(view, {})]
    for name in names:
        _engine(view, {"engine": name})
    return names


def _knob_values(values: Mapping[str, str]) -> dict[str, float]:
    """What knobs are to be, `KNOB=NUMBER` a line."""
    found: dict[str, float] = {}
    for line in values.get("values", "").split("\n"):
        name, _, text = line.partition("=")
        if not line:
            continue
        if name not in KNOBS:
            raise ApiError(400, f"no knob {shown(name)}: there is {', '.join(KNOBS)}")
        if name in found:
            raise ApiError(400, f"knob {name} is given twice")
        if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text):
            raise ApiError(400, f"knob {name} is a number, not {shown(text)}")
        found[name] = float(text)
    if not found:
        raise ApiError(400, "parameter values, KNOB=NUMBER a line, is needed")
    return found


def _release(view: AgentView, values: Mapping[str, str]) -> JsonObject:
    engines = _engines(view, values) if values.get("engines") else []
    return view.changes.give_back(engines, _reason(values) or "an operator gave it back")


def _reason(values: Mapping[str, str]) -> str:
    reason = values.get("reason", "")
    if len(reason) > MAX_REASON_CHARS:
        raise ApiError(400, f"reason is at most {MAX_REASON_CHARS} characters")
    return reason


def _apply_policy(view: AgentView, values: Mapping[str, str]) -> JsonObject:
    text, source = _text(values), _source(values)
    temporary, engine = switch(values, "temporary"), _engine(view, values)
    seconds = number(values, "canary_s", None, SHORTEST_S, LONGEST_S)
    if seconds is None:
        if engine is not None:
            raise ApiError(400, "parameter engine goes with canary_s")
        return view.policies.apply(text, source, temporary)
    if temporary:
        raise ApiError(400, "parameter temporary does not go with canary_s")
    return view.policies.try_out(text, source, seconds, engine)


def _source(values: Mapping[str, str]) -> str:
    """What to call the policy that was sent."""
    source = plain(values.get("source", "policy"))
    if len(source) > MAX_SOURCE_CHARS:
        raise ApiError(400, f"source is at most {MAX_SOURCE_CHARS} characters")
    return source


def _text(values: Mapping[str, str]) -> str:
    """The policy that was sent."""
    if "text" not in values:
        raise ApiError(400, "parameter text, the policy in TOML, is needed")
    return values["text"]


def _finite(answer: JsonObject) -> JsonObject:
    """`answer` with NaN and infinities, for which JSON has no word, as null: not known."""
    values: JsonObject = json.loads(json.dumps(answer), parse_constant=lambda _: None)
    return values


_CALLS: Final[Mapping[str, _Call]] = {
    "/v1/status": _Call("GET", (), lambda view, _: view.status()),
    "/v1/engines": _Call("GET", (), lambda view, _: view.engines()),
    "/v1/streams": _Call(
        "GET",
        ("engine", "after", "limit"),
        lambda view, values: view.streams(
            _engine(view, values),
            whole(values, "after", None, 0, _MAX_ID),
            whole(values, "limit", 100, 1, MAX_STREAMS),
        ),
    ),
    "/v1/explain": _Call(
        "GET",
        ("engine", "seconds"),
        lambda view, values: view.explain(
            _one_engine(view, values), number(values, "seconds", 30.0, 1, MAX_EXPLAIN_S)
        ),
    ),
    "/v1/stages": _Call(
        "GET",
        ("engine", "seconds", "factor", "floor"),
        lambda view, values: view.stages(
            _one_engine(view, values),
            number(values, "seconds", 30.0, 1, MAX_STAGES_S),
            number(values, "factor", FACTOR, 1, MAX_FACTOR),
            number(values, "floor", None, 0, MAX_FLOOR),
        ),
    ),
    "/v1/neighbours": _Call("GET", (), lambda view, _: view.neighbours()),
    "/v1/gpu": _Call("GET", (), lambda view, _: view.gpu()),
    "/v1/journal": _Call(
        "GET",
        ("limit", "engine", "before", "order"),
        lambda view, values: view.journal(
            whole(values, "limit", 20, 1, MAX_DECISIONS),
            values.get("engine"),
            whole(values, "before", None, 1, _MAX_ID),
            _order(values),
        ),
    ),
    "/v1/policy": _Call("GET", (), lambda view, _: view.policy()),
    "/v1/policy/diff": _Call(
        "POST",
        ("text", "source"),
        lambda view, values: view.policies.diff(_text(values), _source(values)),
        MAX_POLICY_BODY_BYTES,
        reads=True,
    ),
    "/v1/policy/apply": _Call(
        "POST",
        ("text", "source", "temporary", "canary_s", "engine"),
        _apply_policy,
        MAX_POLICY_BODY_BYTES,
    ),
    "/v1/policy/abort": _Call(
        "POST", ("reason",), lambda view, values: view.policies.abort(_reason(values))
    ),
    "/v1/policy/status": _Call("GET", (), lambda view, _: view.policies.status()),
    "/v1/policy/reload": _Call("POST", (), lambda view, _: view.policies.reload()),
    "/v1/doctor": _Call("GET", (), lambda view, _: view.doctor()),
    "/v1/mode": _Call("POST", ("mode", "reason"), _set_mode),
    "/v1/inject": _Call("POST", ("what", "value", "seconds", "reason"), _inject),
    "/v1/set": _Call("POST", ("values", "engines", "lease_s", "reason"), _set_knobs),
    "/v1/release": _Call("POST", ("engines", "reason"), _release),
}
