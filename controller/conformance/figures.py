"""Checks of what the engine shows of itself: `stats` and the page."""

import os
import struct
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from controller.conformance.check import BreachError, NotApplicableError, check
from controller.conformance.probe import Probe, look
from controller.conformance.wire import Answer
from controller.engines.contract import encode
from controller.engines.nonsense import MOST, nonsense
from controller.engines.page import MAGIC, PAGE_BYTES, PAGE_VERSION, EngineNow

_NAMES: Final = tuple(field.name for field in fields(EngineNow))
_CAME_LATER: Final = _NAMES[_NAMES.index("deferred") :]
_SHOWN_KNOBS: Final = ("max_running", "max_batched_tokens")

_HEADER: Final = struct.Struct("<8sIIQ")
_SEQUENCE: Final = struct.Struct("<Q")
_SEQUENCE_AT: Final = 16
_BODY_AT: Final = 64
_ZEROS: Final = ((24, 64), (240, 256), (3328, 4096))
"""From and to: what the layout leaves empty."""

_RENEWALS: Final = 40
_LOOKS_EACH: Final = 10
_LOOK: Final = "(a look at the page)"


@check("calls", "`now`: the fields of the page's table, by name")
def stats(probe: Probe) -> None:
    """Stats has the page's fields, and figures that can be."""
    knob = probe.hello.knobs.get("max_running")
    most = knob.maximum if knob is not None else MOST
    before = None
    for _ in range(2):
        answer = probe.ask("stats").ok()
        now = _now(answer)
        wrong = nonsense(now, before, most)
        answer.require(not wrong, f"figures that can be (not this: {wrong})")
        before = now


@check("the-stats-page", "`epoch`: the applied epoch, 0 without a lease")
def stats_follow(probe: Probe) -> None:
    """Stats shows the values in force and their epoch, 0 without a lease."""
    epoch = probe.set(probe.small).ok()["epoch"]
    settled = probe.settled().shows(applied_epoch=epoch)
    _agrees(_now(probe.ask("stats").ok()), settled["values"], epoch, "(stats)")
    probe.release().ok()
    values = probe.settled()["values"]
    _agrees(_now(probe.ask("stats").ok()), values, 0, "(stats)")


@check("the-stats-page", "A file of 4,096 bytes")
def page_layout(probe: Probe) -> None:
    """The page is 4,096 bytes, names itself and its version, and is zero where it is empty."""
    page = _page_bytes(probe)
    if len(page) != PAGE_BYTES:
        raise BreachError(f"{PAGE_BYTES} bytes", f"{len(page)}", _LOOK)
    magic, version, size, _ = _HEADER.unpack_from(page)
    if (magic, version, size) != (MAGIC, PAGE_VERSION, PAGE_BYTES):
        raise BreachError(
            f"{MAGIC!r}, version {PAGE_VERSION}, {PAGE_BYTES} bytes",
            f"{magic!r}, version {version}, {size} bytes",
            _LOOK,
        )
    for begin, end in _ZEROS:
        if any(page[begin:end]):
            raise BreachError(
                f"zeros from {begin} to {end}", page[begin:end].hex(" ", 8)[:80], _LOOK
            )


@check("the-stats-page", "whenever a knob or the lease changes")
def page_follows(probe: Probe) -> None:
    """The page shows a change and its epoch, and the end of the lease."""
    page = probe.page()
    epoch = probe.set(probe.small).ok()["epoch"]
    values = probe.settled()["values"]
    probe.until(lambda: look(page).epoch == epoch, probe.step_s, f"epoch {epoch} on the page")
    _agrees(look(page), values, epoch, _LOOK)
    updated_ns = look(page).updated_ns
    probe.release().ok()
    values = probe.settled()["values"]
    probe.until(lambda: look(page).epoch == 0, probe.step_s, "epoch 0 on the page")
    _agrees(look(page), values, 0, _LOOK)
    if look(page).updated_ns <= updated_ns:
        raise BreachError("updated_ns to grow with a change", f"it stays {updated_ns}", _LOOK)


@check(
    "the-stats-page",
    "The one writer adds 1 to `sequence`, so that it is odd, writes, and adds 1 again.",
)
def page_sequence(probe: Probe) -> str:
    """Whatever changes on the page changes its sequence, and a reader gets through."""
    look(probe.page())
    wire = probe.connect()
    seen: dict[int, bytes] = {}
    with Path(probe.hello.page or "").open("rb", buffering=0) as file:
        epoch = probe.next_epoch()
        for n in range(_RENEWALS):
            wire.send(
                encode(
                    {"id": n, "call": "set", "owner": probe.owner, "epoch": epoch + n}
                    | {"lease_ms": probe.hello.max_lease_ms}
                )
            )
            for _ in range(_LOOKS_EACH):
                _note(seen, file.fileno())
            wire.answer(n).ok()
            _note(seen, file.fileno())
    return f"{len(seen)} states of it seen"


@check(
    "rules",
    "An agent that must know waits for the page's `epoch`, or `applied_epoch`, to reach its own.",
)
def page_like_stats(probe: Probe) -> None:
    """Page and stats show the same figures."""
    page = probe.page()
    probe.settled()
    first, answer, last = look(page), probe.ask("stats").ok(), look(page)
    now = _now(answer)
    for name in (*_SHOWN_KNOBS, "epoch", "kv_total", "lease_expiries_total"):
        if getattr(first, name) == getattr(last, name) != getattr(now, name):
            raise answer.failed(f"{name} to be {getattr(last, name)}, as on the page")
    for name in _NAMES:
        if name.endswith("_total") and name != "kv_total":
            low, high = getattr(first, name), getattr(last, name)
            inside = low <= getattr(now, name) <= high
            answer.require(inside, f"{name} to be {low} to {high}, as on the page")


def _now(answer: Answer) -> EngineNow:
    now: Any = answer["now"]
    answer.require(isinstance(now, dict), "now to be an object")
    for name in _NAMES:
        if name in now or name not in _CAME_LATER:
            whole = type(now.get(name)) is int and now[name] >= 0
            answer.require(whole, f"now.{name} to be a whole number from 0")
    return EngineNow(**{name: now[name] for name in _NAMES if name in now})


def _agrees(now: EngineNow, values: Mapping[str, float], epoch: int, sent: str) -> None:
    for name, value in {**values, "epoch": epoch}.items():
        if name in (*_SHOWN_KNOBS, "epoch") and getattr(now, name) != value:
            raise BreachError(f"{name} to be {value:g}", f"{getattr(now, name)}", sent)


def _note(seen: dict[int, bytes], fd: int) -> None:
    """Take a look; two at the same even sequence have to be the same page."""
    before = os.pread(fd, _SEQUENCE.size, _SEQUENCE_AT)
    body = os.pread(fd, PAGE_BYTES - _BODY_AT, _BODY_AT)
    if before != os.pread(fd, _SEQUENCE.size, _SEQUENCE_AT):
        return
    (sequence,) = _SEQUENCE.unpack(before)
    if sequence % 2 == 0 and seen.setdefault(sequence, body) != body:
        raise BreachError(
            "another sequence where the page is another", f"{sequence} for both", _LOOK
        )


def _page_bytes(probe: Probe) -> bytes:
    if probe.hello.page is None:
        raise NotApplicableError("the engine offers no page")
    try:
        with Path(probe.hello.page).open("rb") as file:
            return file.read(PAGE_BYTES + 1)
    except OSError as error:
        raise BreachError("a stats page where hello says", str(error), _LOOK) from None


CHECKS: Final = (
    stats, stats_follow, page_layout, page_follows, page_sequence, page_like_stats,
)  # fmt: skip
