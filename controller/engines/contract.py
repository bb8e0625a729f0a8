"""Engine contract v1: the messages between the agent and an engine, without any IO.

One JSON object a line, UTF-8, over a Unix stream socket; `docs/engine-protocol.md` is the
specification for other implementers. This module is what both of our ends share: the client in
`controller.engines.client` and the server in `controller.serving.server`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

_json: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

PROTOCOL_VERSION: Final = 1
MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line ends the connection: nothing in the contract needs one."""

CALLS: Final = ("hello", "get", "set", "release", "prepare", "commit", "abort", "stats", "watch")

KNOBS: Final = {
    "max_running": "requests",
    "max_batched_tokens": "tokens",
    "long_prefill_tokens": "tokens",
    "max_queued": "requests",
    "ttft_deadline_ms": "ms",
    "prefill_tokens_per_s": "tokens/s",
    "max_deferral_ms": "ms",
    "batch_window_ms": "ms",
    "kv_cache_ratio": "ratio",
    "concurrency": "requests",
}
"""Every knob the contract knows, with its unit. An engine offers those it has in `hello`."""

RELOAD: Final = "reload"
"""The `cost` of a knob whose change is dear."""

ERRORS: Final = {
    "bad_json": "the line is not one JSON object",
    "bad_request": "a field is missing or has the wrong type",
    "unknown_call": "the call is not in this version of the contract",
    "unknown_knob": "the engine does not offer this knob",
    "out_of_range": "the value is outside the knob's range",
    "stale_epoch": "the epoch is not above the last one taken",
    "held": "another owner's lease is in force",
    "not_prepared": "there is nothing prepared under this epoch",
    "failed": "the engine did not take this change a moment ago",
    "denied": "the peer is neither root nor in the admin group",
}
"""Error codes and what each means."""


class ContractError(ValueError):
    """A message the contract does not allow; `code` is one of `ERRORS`, `knob` what it is about."""

    def __init__(self, code: str, message: str, knob: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.knob = knob

    def as_dict(self) -> dict[str, Any]:
        """The `error` member of a response."""
        error: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.knob is not None:
            error["knob"] = self.knob
        return error


@dataclass(frozen=True, slots=True)
class Knob:
    """What an engine says of one knob in `hello`.

    `start` is the value in force without a lease; `cost` is how dear a change is: `step` (in force
    at the next step), `reload` (the engine reloads, 100 ms and more).
    """

    name: str
    minimum: float
    maximum: float
    start: float
    unit: str
    cost: str = "step"

    def check(self, value: object) -> float:
        """Return `value` as this knob takes it, or raise `ContractError`."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ContractError(
                "bad_request", f"{self.name} must be a number, not {value!r:.40}", self.name
            )
        if not self.minimum <= value <= self.maximum:
            raise ContractError(
                "out_of_range",
                f"{self.name} must be {self.minimum:g} to {self.maximum:g} {self.unit},"
                f" not {value!r:.40}",
                self.name,
            )
        if self.unit == "ratio" or value == self.start:
            return value
        if value != int(value):
            raise ContractError(
                "bad_request", f"{self.name} must be a whole number of {self.unit}", self.name
            )
        return int(value)

    def as_dict(self) -> dict[str, Any]:
        """This knob as it stands in `hello`, without its name."""
        return {
            "min": self.minimum,
            "max": self.maximum,
            "start": self.start,
            "unit": self.unit,
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True)
class Hello:
    """An engine's identity and what it can do.

    `instance` changes at every start of the engine, so that a restart is seen. `page` is the path
    of the stats page (`controller.engines.page`) or None.
    """

    engine: str
    version: str
    instance: str
    pid: int
    knobs: Mapping[str, Knob]
    graph_sizes: tuple[int, ...] = ()
    page: str | None = None
    max_lease_ms: int = 10_000

    def as_dict(self) -> dict[str, Any]:
        """The `hello` response's fields."""
        return {
            "protocol": [PROTOCOL_VERSION],
            "engine": self.engine,
            "version": self.version,
            "instance": self.instance,
            "pid": self.pid,
            "knobs": {name: knob.as_dict() for name, knob in self.knobs.items()},
            "graph_sizes": list(self.graph_sizes),
            "page": self.page,
            "max_lease_ms": self.max_lease_ms,
        }


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as the line that goes over the wire."""
    return _json.encode(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One line as a message; `ContractError` if it is not one JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError("bad_json", f"not a line of JSON: {error}") from None
    if not isinstance(message, dict):
        raise ContractError("bad_json", f"a message is a JSON object, not {type(message).__name__}")
    return message


def parse_hello(message: Mapping[str, Any]) -> Hello:
    """An engine's `hello` response; `ContractError` names the field that is wrong.

    Knobs this version does not know are left out: a newer engine may offer more.
    """
    versions = message.get("protocol")
    if not isinstance(versions, list) or PROTOCOL_VERSION not in versions:
        raise ContractError(
            "bad_request",
            f"protocol must be a list with {PROTOCOL_VERSION} in it, not {versions!r:.40}",
        )
    offered = _field(message, "knobs", dict)
    knobs = {}
    for name, fields in offered.items():
        if name not in KNOBS:
            continue
        if not isinstance(fields, dict):
            raise ContractError("bad_request", f"knobs.{name} must be an object", name)
        minimum, maximum, start = (
            _number(fields, key, f"knobs.{name}.{key}") for key in ("min", "max", "start")
        )
        if not minimum <= start <= maximum:
            raise ContractError(
                "bad_request", f"knobs.{name}: min ≤ start ≤ max does not hold", name
            )
        cost = fields.get("cost", "step")
        knobs[name] = Knob(name, minimum, maximum, start, KNOBS[name], str(cost))
    page = message.get("page")
    return Hello(
        engine=_field(message, "engine", str),
        version=_field(message, "version", str),
        instance=_field(message, "instance", str),
        pid=_field(message, "pid", int),
        knobs=knobs,
        graph_sizes=_sizes(message.get("graph_sizes", [])),
        page=page if isinstance(page, str) else None,
        max_lease_ms=int(_number(message, "max_lease_ms", "max_lease_ms")),
    )


def _field(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = message.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ContractError("bad_request", f"{name} must be {kind.__name__}, not {value!r:.40}")
    return value


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(size) is not int for size in value):
        raise ContractError(
            "bad_request", f"graph_sizes must be a list of whole numbers, not {value!r:.40}"
        )
    return tuple(value)


def _number(fields: Mapping[str, Any], key: str, path: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 2**53:
        raise ContractError("bad_request", f"{path} must be a number, not {value!r:.40}")
    return value
