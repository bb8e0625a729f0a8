"""Checks of `hello`: who the engine is and what it offers."""

from typing import Any, Final

from controller.conformance.check import NotApplicableError, check
from controller.conformance.probe import Probe
from controller.engines.contract import KNOBS, PROTOCOL_VERSION

STATE_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "values": dict,
    "pending": dict,
    "state": str,
    "start": dict,
    "owner": (str, type(None)),
    "epoch": int,
    "applied_epoch": int,
    "prepared_epoch": (int, type(None)),
    "lease_ms_left": int,
}
"""What every answer carries but those of `hello` and `stats`, and its type."""

_COSTS: Final = ("step", "reload")


@check(
    "calls",
    "`protocol`: versions the engine speaks, `engine`, `version`, `instance` (new at every start of"
    " the engine), `pid`, `knobs`, `graph_sizes` (batch sizes it has captured, may be empty),"
    " `page` (path or `null`), `max_lease_ms`",
)
def hello(probe: Probe) -> None:
    """Hello says who the engine is."""
    answer = probe.ask("hello", protocol=[PROTOCOL_VERSION]).ok()
    for name in ("engine", "version", "instance"):
        answer.require(_is(answer[name], str) and answer[name] != "", f"{name} to be a string")
    for name in ("pid", "max_lease_ms"):
        answer.require(_is(answer[name], int), f"{name} to be a whole number")
    answer.require(answer["max_lease_ms"] >= 1, "max_lease_ms to be above 0")
    sizes = answer["graph_sizes"]
    answer.require(
        _is(sizes, list) and all(_is(size, int) for size in sizes),
        "graph_sizes to be a list of whole numbers",
    )
    answer.require(answer["page"] is None or _is(answer["page"], str), "page to be a path or null")
    again = probe.connect().ask("hello").ok()
    again.shows(instance=answer["instance"])


@check("calls", "`protocol`: versions spoken (optional)")
def hello_versions(probe: Probe) -> None:
    """Hello refuses a peer with no version in common."""
    probe.ask("hello", protocol=[PROTOCOL_VERSION, 10**6]).ok()
    probe.ask("hello").ok()
    probe.ask("hello", protocol=[10**6]).refused("bad_request")


@check(
    "knobs",
    "An engine offers those it has, in `hello`: `min`, `max` and `start` (the value in force"
    " without a lease, `min ≤ start ≤ max`), `unit`, and `cost`",
)
def knob_ranges(probe: Probe) -> str:
    """Every knob offered has a range, a start within it, a unit and a cost."""
    answer = probe.ask("hello").ok()
    answer.require(_is(answer["knobs"], dict), "knobs to be an object")
    known = {name: knob for name, knob in answer["knobs"].items() if name in KNOBS}
    for name, knob in known.items():
        answer.require(
            _is(knob, dict) and {"min", "max", "start", "unit", "cost"} <= knob.keys(),
            f"{name} to have min, max, start, unit and cost",
        )
        numbers = [knob[key] for key in ("min", "start", "max")]
        answer.require(all(_is(number, int, float) for number in numbers), f"numbers for {name}")
        answer.require(numbers == sorted(numbers), f"min ≤ start ≤ max for {name}")
        answer.require(knob["unit"] == KNOBS[name], f"{name} in {KNOBS[name]}")
        answer.require(knob["cost"] in _COSTS, f"the cost of {name} to be step or reload")
        # the engine may have been started with anything
        bounds = (knob["min"], knob["max"])
        whole = KNOBS[name] == "ratio" or all(
            number == int(number) for number in bounds if number != knob["start"]
        )
        answer.require(whole, f"whole numbers for {name}")
    if not known:
        raise NotApplicableError("the engine offers no knob")
    return ", ".join(known)


@check(
    "calls",
    "`state` below stands for these fields, which every answer but those of `hello` and `stats`"
    " carries",
)
def state_fields(probe: Probe) -> None:
    """Every answer carries the state, each field of its type."""
    answers = [probe.get(), probe.set().ok(), probe.ask("watch").ok()]
    prepared = probe.ask(
        "prepare", owner=probe.owner, epoch=probe.next_epoch(), lease_ms=1, term_ms=1, values={}
    )
    if prepared.code != "unknown_call":
        answers.append(prepared.ok())
        answers.append(probe.ask("abort", owner=probe.owner, epoch=prepared["epoch"]).ok())
        answers[-1].require(_is(answers[-1]["aborted"], bool), "aborted to be true or false")
    answers.append(probe.release().ok())
    answers[-1].require(_is(answers[-1]["released"], bool), "released to be true or false")
    for answer in answers:
        for name, kind in STATE_FIELDS.items():
            kinds = kind if isinstance(kind, tuple) else (kind,)
            answer.require(_is(answer[name], *kinds), f"{name} as the contract has it")
        answer.require(answer["state"] in {"pending", "applied"}, "state pending or applied")
        answer.require(
            (answer["state"] == "pending") == bool(answer["pending"]),
            "state to be pending if pending has any, else applied",
        )


@check("calls", "every knob's value without a lease")
def start_values(probe: Probe) -> None:
    """Without a lease every knob is at the start value that hello tells."""
    answer = probe.settled()
    answer.shows(owner=None, applied_epoch=0, lease_ms_left=0, prepared_epoch=None)
    for name, value in probe.start.items():
        answer.require(answer["start"].get(name) == value, f"start of {name} to be {value:g}")
        answer.require(answer["values"].get(name) == value, f"{name} to be {value:g}")


def _is(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


CHECKS: Final = (hello, hello_versions, knob_ranges, state_fields, start_values)
