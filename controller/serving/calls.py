"""The calls of the engine contract, answered by what serves it: one message in, one out, no IO."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from controller.engines.contract import CALLS, PROTOCOL_VERSION, ContractError, Hello
from controller.serving.leases import Leases
from controller.serving.served import Served

MAX_OWNER_CHARACTERS: Final = 200
MIN_PERIOD_MS: Final = 5
MAX_PERIOD_MS: Final = 60_000

Message = Mapping[str, Any]


class Calls:
    """What an engine answers to each call."""

    def __init__(self, engine: Served, hello: Hello) -> None:
        self._engine = engine
        self._hello = hello

    def answer(self, message: Message) -> dict[str, Any]:
        """The response to `message`, without its `id`; an error is a response too."""
        try:
            return {"ok": True, **self._answer(message)}
        except ContractError as error:
            return {"ok": False, "error": error.as_dict(), **self._epoch(error)}

    def knobs_event(self) -> dict[str, Any]:
        """What a watcher gets when a value, the epoch or the lease's owner changed."""
        return {"event": "knobs", **self._engine.with_leases(_nothing)}

    def stats_event(self) -> dict[str, Any]:
        """What a watcher gets every period."""
        return {"event": "stats", "now": asdict(self._engine.now())}

    def _answer(self, message: Message) -> dict[str, Any]:
        call = message.get("call")
        match call:
            case "hello":
                return self._greet(message)
            case "get":
                return self._engine.with_leases(_nothing)
            case "stats":
                return {"now": asdict(self._engine.now())}
            case "watch":
                return {"period_ms": watch_period_ms(message)} | self._engine.with_leases(_nothing)
            case "set" | "release" | "prepare" | "commit" | "abort":
                return self._engine.with_leases(_CHANGES[call](message))
            case _:
                raise ContractError(
                    "unknown_call", f"call must be one of {', '.join(CALLS)}, not {call!r:.40}"
                )

    def _greet(self, message: Message) -> dict[str, Any]:
        spoken = message.get("protocol", [PROTOCOL_VERSION])
        if not isinstance(spoken, list) or PROTOCOL_VERSION not in spoken:
            raise ContractError(
                "bad_request",
                f"protocol must be a list with {PROTOCOL_VERSION} in it, not {spoken!r:.40}",
            )
        return self._hello.as_dict()

    def _epoch(self, error: ContractError) -> dict[str, Any]:
        """What a caller needs to go on: after `stale_epoch`, the last epoch taken."""
        if error.code != "stale_epoch":
            return {}
        return {"epoch": self._engine.with_leases(_nothing)["epoch"]}


def watch_period_ms(message: Message) -> int | None:
    """The `period_ms` of a `watch`: how often it wants `stats` events, None for never."""
    if message.get("period_ms") is None:
        return None
    period_ms = _whole(message, "period_ms")
    if not MIN_PERIOD_MS <= period_ms <= MAX_PERIOD_MS:
        raise ContractError(
            "out_of_range",
            f"period_ms must be {MIN_PERIOD_MS} to {MAX_PERIOD_MS} ms, not {period_ms}",
        )
    return period_ms


Act = Callable[[Leases], dict[str, Any]]


def _nothing(_: Leases) -> dict[str, Any]:
    return {}


def _set(message: Message) -> Act:
    owner, epoch = _owner(message), _whole(message, "epoch")
    lease_ms, values = _whole(message, "lease_ms"), _values(message)

    def act(leases: Leases) -> dict[str, Any]:
        leases.set(time.monotonic_ns(), owner, epoch, lease_ms, values)
        return {}

    return act


def _release(message: Message) -> Act:
    owner = _owner(message)

    def act(leases: Leases) -> dict[str, Any]:
        return {"released": leases.release(time.monotonic_ns(), owner)}

    return act


def _prepare(message: Message) -> Act:
    owner, epoch = _owner(message), _whole(message, "epoch")
    lease_ms, values = _whole(message, "lease_ms"), _values(message)
    term_ms = _whole(message, "term_ms")

    def act(leases: Leases) -> dict[str, Any]:
        leases.prepare(time.monotonic_ns(), owner, epoch, lease_ms, values, term_ms=term_ms)
        return {}

    return act


def _commit(message: Message) -> Act:
    owner, epoch = _owner(message), _whole(message, "epoch")

    def act(leases: Leases) -> dict[str, Any]:
        leases.commit(time.monotonic_ns(), owner, epoch)
        return {}

    return act


def _abort(message: Message) -> Act:
    owner, epoch = _owner(message), _whole(message, "epoch")

    def act(leases: Leases) -> dict[str, Any]:
        return {"aborted": leases.abort(time.monotonic_ns(), owner, epoch)}

    return act


_CHANGES: Final[Mapping[str, Callable[[Message], Act]]] = {
    "set": _set,
    "release": _release,
    "prepare": _prepare,
    "commit": _commit,
    "abort": _abort,
}


def _owner(message: Message) -> str:
    owner = message.get("owner")
    if not isinstance(owner, str) or not 0 < len(owner) <= MAX_OWNER_CHARACTERS:
        raise ContractError(
            "bad_request",
            f"owner must be a string of 1 to {MAX_OWNER_CHARACTERS} characters, not {owner!r:.40}",
        )
    return owner


def _whole(message: Message, field: str) -> int:
    value = message.get(field)
    if type(value) is not int:
        raise ContractError("bad_request", f"{field} must be a whole number, not {value!r:.40}")
    return value


def _values(message: Message) -> Mapping[str, object]:
    values = message.get("values", {})
    if not isinstance(values, dict):
        raise ContractError("bad_request", f"values must be an object, not {values!r:.40}")
    return values
