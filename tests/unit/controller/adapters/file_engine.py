"""An engine whose values are a file, with a driver: what a bridge does can be seen from outside."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controller.adapters.bridge import Bridge
from controller.adapters.driver import AdapterError, Figures, Identity
from controller.adapters.undo import Undo, UndoFile
from controller.engines.contract import Knob

START = {"max_running": 8, "max_queued": 100}
KNOBS = {name: Knob(name, 1, value, value, "requests") for name, value in START.items()}


@dataclass
class FileEngine:
    """A driver over `path`. `refuses` are values of max_running that it takes and does not make."""

    path: Path
    refuses: set[float] = field(default_factory=set)
    slow_s: float = 0.0
    gone: bool = False
    writes: list[Mapping[str, float]] = field(default_factory=list)
    told: Figures = field(default_factory=Figures)

    def set(self, instance: str, **values: float) -> None:
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text(json.dumps({"instance": instance, "values": values}))
        fresh.replace(self.path)

    def values(self) -> dict[str, float]:
        values: dict[str, float] = json.loads(self.path.read_text())["values"]
        return values

    def identify(self) -> Identity:
        return Identity("file", "1", json.loads(self._text())["instance"], 0)

    def knobs(self) -> Mapping[str, Knob]:
        return {
            name: Knob(name, 1, value, value, "requests") for name, value in self.read().items()
        }

    def keep(self) -> Mapping[str, object]:
        return {"path": str(self.path)}

    def recall(self, kept: Mapping[str, object]) -> None:
        assert kept == self.keep()

    def read(self) -> Mapping[str, float]:
        values: dict[str, float] = json.loads(self._text())["values"]
        return values

    def write(self, values: Mapping[str, float]) -> None:
        self.writes.append(dict(values))
        time.sleep(self.slow_s)
        if values["max_running"] not in self.refuses:
            self.set(self.identify().instance, **values)

    def figures(self) -> Figures:
        self._text()
        return self.told

    def close(self) -> None:
        pass

    def _text(self) -> str:
        if self.gone:
            raise AdapterError("the engine is gone")
        return self.path.read_text()


def engine_at(path: Path) -> FileEngine:
    engine = FileEngine(path)
    engine.set("first", **START)
    return engine


def bridge_to(engine: FileEngine, undo: UndoFile) -> Bridge:
    identity, knobs = engine.identify(), engine.knobs()
    start = {name: knob.start for name, knob in knobs.items()}
    record = Undo("file", {}, identity.instance, engine.keep(), start, start, None)
    return Bridge(engine, identity, knobs, undo, record, None)
