"""A limit on the clients of an MPS control daemon that start while it is held, and its undoing.

Two kinds of places are held, for clients to come get theirs from either: the default, for servers
that are still to start, and each server that runs. A place that has less already is left alone.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from controller.mps.control import DEFAULT, Control, MpsError, Percents, State


class ForeignError(Exception):
    """Somebody else has set what we hold; the message says what."""


@dataclass(frozen=True, slots=True)
class Held:
    """A limit and what it stands in for: all that somebody else needs to undo it.

    `instance` is the daemon's. `before` has every place that was seen, with what it had on its own:
    for a server that started under the limit that is the default of before.
    """

    pipe_directory: str
    instance: str
    percent: float
    before: Percents


def seen(held: Held, found: Percents) -> Held:
    """`held` with the servers that there are now."""
    before = {place: held.before.get(place, value) for place, value in found.items()}
    for place in found.keys() - held.before.keys():
        if _same(found[place], held.percent):
            before[place] = held.before[DEFAULT]
    return replace(held, before=before)


def to_lower(held: Held, found: Percents) -> list[str]:
    """The places that have more than the limit, the default first."""
    return [place for place, value in found.items() if _above(value, held.percent)]


def foreign(held: Held, found: Percents) -> Percents:
    """The places we lowered that have another value than ours now."""
    return {
        place: value
        for place, value in found.items()
        if _above(held.before.get(place, 0), held.percent) and not _same(value, held.percent)
    }


def to_restore(held: Held, found: Percents) -> Percents:
    """What to put back: where our value still is, what was there before; the default first."""
    own = {place: held.before.get(place, held.before[DEFAULT]) for place in found}
    return {
        place: own[place]
        for place, value in found.items()
        if _same(value, held.percent) and _above(own[place], held.percent)
    }


def hold(control: Control, percent: float, held: Held | None, save: Callable[[Held], None]) -> Held:
    """Begin to hold, or see to it that what is `held` still is; `save` persists it before a write.

    `ForeignError` if somebody else has set it, `MpsError` if it can't be held. A restarted daemon
    has its own values again and is begun with anew.
    """
    instance = control.instance()
    found = control.read()
    if held is None or held.instance != instance:
        now = Held(str(control.directory), instance, percent, found)
    else:
        if others := foreign(held, found):
            raise ForeignError(_shown(others))
        now = seen(held, found)
    lower = to_lower(now, found)
    if now != held:
        save(now)
    _put(control, instance, dict.fromkeys(lower, percent))
    return now


def release(control: Control, held: Held) -> str:
    """Put back what is still ours; says what was done. `MpsError` if it can't be."""
    try:
        if control.instance() != held.instance:
            return "the daemon has restarted since, with its own values"
        found = control.read()
        back = to_restore(held, found)
        _put(control, held.instance, back)
    except MpsError as error:
        if error.state is State.NO_DAEMON:
            return "the daemon is gone, and the limit with it"
        raise
    left = {place: found[place] for place in foreign(held, found)}
    said = ", ".join(f"{place} {found[place]:g} → {value:g}" for place, value in back.items())
    return "; ".join([said or "nothing had changed", *([f"left: {_shown(left)}"] if left else [])])


def parse_held(text: str) -> Held:
    """What `asdict` made of a `Held`, in JSON; `ValueError` if it is not that."""
    fields: Any = json.loads(text)
    try:
        held = Held(**fields)
        before = {str(place): float(value) for place, value in held.before.items()}
        held = Held(str(held.pipe_directory), str(held.instance), float(held.percent), before)
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
    if DEFAULT not in before or not all(0 < each <= 100 for each in before.values()):
        raise ValueError(f"before is {before!r:.100}")
    return held


def _put(control: Control, instance: str, values: Percents) -> None:
    """Write `values` and read them back; a server that has ended meanwhile is no loss."""
    if not values:
        return
    words = []
    for place, percent in values.items():
        if control.instance() != instance:
            raise MpsError(State.NO_DAEMON, "the daemon restarts")
        try:
            control.write(place, percent)
        except MpsError as error:
            if error.state is not State.REFUSED:
                raise
            words.append(str(error))
    found = control.read()
    wrong = {
        place: found[place]
        for place, percent in values.items()
        if place in found and not _same(found[place], percent)
    }
    if wrong:
        said = "; ".join(words) or "the daemon took a percentage and did not set it"
        raise MpsError(State.REFUSED, f"{said}: {_shown(wrong)}")


def _same(one: float, other: float) -> bool:
    """Within what the daemon's one decimal can tell."""
    return math.isclose(one, other, abs_tol=0.051)


def _above(one: float, other: float) -> bool:
    return one > other and not _same(one, other)


def _shown(values: Percents) -> str:
    return ", ".join(f"{place} is {value:g}%" for place, value in values.items())
