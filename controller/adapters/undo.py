"""The undo file of one adapter: what to write back, should the adapter die before it could.

It is on the disk before the engine is written to, and gone once the engine has its start values
again. Its lock is held by the adapter that serves the engine, for as long as it lives, so that
nobody else writes to that engine meanwhile.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from controller.adapters.driver import AdapterError, Driver
from controller.kept_file import KeptFile, UndoError

__all__ = ["Undo", "UndoError", "UndoFile", "Values", "foreign", "put", "restore"]

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Undo:
    """What an adapter has done to an engine.

    `kind` and `settings` make the driver, `kept` is what that needs of the earlier one. `values`
    are those of ours in force; `wanted` are those being written, None while nothing is.
    """

    kind: str
    settings: Mapping[str, str]
    instance: str
    kept: Mapping[str, object]
    start: Values
    values: Values
    wanted: Values | None


class UndoFile:
    """The undo file at `path`; its lock is held by the adapter that serves the engine."""

    def __init__(self, path: Path) -> None:
        """Take the lock; `UndoError` if another process has it, or there can be no such file."""
        self.path = path
        self._file = KeptFile(path, "an adapter that runs")

    def load(self) -> Undo | None:
        """What stands in the file, None without one.

        A file that makes no sense is moved to PATH.corrupt, and `UndoError` says so.
        """
        return self._file.load(_parse)

    def save(self, undo: Undo) -> None:
        """Replace what stands in the file; it is on the disk when this returns."""
        self._file.save(asdict(undo))

    def clear(self) -> None:
        """Nothing is left to undo."""
        self._file.clear()

    def set_aside(self) -> None:
        """Nobody can undo this any more; it is kept under another name for a person to look at."""
        self._file.set_aside()

    def close(self) -> None:
        """Let go of the lock."""
        self._file.close()


def restore(undo: Undo, driver: Driver) -> str:
    """Write back what is left of `undo`; says what became of it. `AdapterError` if it can't be."""
    instance = driver.identify().instance
    if instance != undo.instance:
        return "the engine has restarted since, with its own start values"
    driver.recall(undo.kept)
    found = driver.read()
    target = {
        name: undo.start[name] if name in undo.start and _is_ours(name, value, undo) else value
        for name, value in found.items()
    }
    put(driver, target)
    left = [f"{name} is left at {target[name]:g}" for name in foreign(target, undo.start)]
    done = ", ".join(
        f"{name} {found[name]:g} → {target[name]:g}" for name in foreign(found, target)
    )
    return "; ".join([f"back at the start values ({done or 'nothing had changed'})", *left])


def put(driver: Driver, values: Values) -> None:
    """Write `values` and read them back; `AdapterError` if they are not in force then."""
    driver.write(values)
    found = driver.read()
    wrong = foreign(found, values)
    if wrong:
        names = ", ".join(f"{name} is {found[name]:g}, not {values[name]:g}" for name in wrong)
        raise AdapterError(f"the engine took a change and did not make it: {names}")


def foreign(found: Values, ours: Values) -> list[str]:
    """The knobs of which `found` has another value than `ours`, within what a float can hold."""
    return [
        name
        for name, value in found.items()
        if name in ours and not math.isclose(value, ours[name], rel_tol=1e-6, abs_tol=1e-9)
    ]


def _is_ours(name: str, value: float, undo: Undo) -> bool:
    """Whether `value` came of what we did: while a change is on its way, all that is between."""
    known = [undo.start[name], undo.values.get(name, undo.start[name])]
    if undo.wanted is None:
        return any(math.isclose(value, each, rel_tol=1e-6, abs_tol=1e-9) for each in known)
    known.append(undo.wanted.get(name, undo.start[name]))
    return min(known) - 1e-9 <= value <= max(known) + 1e-9


def _parse(text: str) -> Undo:
    fields: Any = json.loads(text)
    wanted = _field(fields, "wanted", (dict, NoneType))
    return Undo(
        kind=_field(fields, "kind", str),
        settings=_all_of(_field(fields, "settings", dict), str),
        instance=_field(fields, "instance", str),
        kept=_field(fields, "kept", dict),
        start=_all_of(_field(fields, "start", dict), (int, float)),
        values=_all_of(_field(fields, "values", dict), (int, float)),
        wanted=None if wanted is None else _all_of(wanted, (int, float)),
    )


def _field(fields: Any, name: str, kind: type[Any] | tuple[type[Any], ...]) -> Any:
    value = fields.get(name, ...) if isinstance(fields, dict) else ...
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def _all_of(fields: dict[str, Any], kind: type[Any] | tuple[type[Any], ...]) -> dict[str, Any]:
    for name in fields:
        _field(fields, name, kind)
    return fields
