"""Finds the ranks of engines whose admin sockets a pattern names, and has each watched."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from controller.ranks import is_pattern, sockets_at
from controller.watch import EngineWatch

GONE_NS: Final = 60_000_000_000
"""So long a rank is shown whose socket is gone: its engine may be starting anew."""


class RankWatches:
    """The further ranks of engines that have several; the first one's watch is the engine's."""

    def __init__(self) -> None:
        self.all: list[EngineWatch] = []

    def of(self, engine: EngineWatch) -> list[EngineWatch]:
        """The further ranks of this engine."""
        return [each for each in self.all if each.policy.name == engine.policy.name]

    def look(
        self, engines: Collection[EngineWatch], lease_ms: int, now_ns: int
    ) -> list[EngineWatch]:
        """Watch what came; returns what went, which is to be given back and closed."""
        rows = {engine.policy.name: engine.row for engine in engines}
        went = [each for each in self.all if rows.get(each.policy.name) != each.row]
        self.all = [each for each in self.all if each not in went]
        for engine in engines:
            pattern = engine.policy.admin_socket
            if pattern is not None and is_pattern(pattern):
                went += self._look_at(engine, pattern, lease_ms, now_ns)
        return went

    def _look_at(
        self, engine: EngineWatch, pattern: Path, lease_ms: int, now_ns: int
    ) -> list[EngineWatch]:
        found, ranks = sockets_at(pattern), self.of(engine)
        known = {each.link.path for each in (engine, *ranks) if each.link is not None}
        new = [path for path in found if path not in known]
        link = engine.link
        if new and (link is None or (link.client is None and link.path not in found)):
            engine.move(new.pop(0), lease_ms)
        for path in new:
            self.all.append(
                EngineWatch(engine.policy, engine.row, None, lease_ms, path, follows=True)
            )
        went = []
        for each in ranks:
            assert each.link is not None
            if each.link.client is not None or each.link.path in found:
                each.gone_ns = None
            elif each.gone_ns is None:
                each.gone_ns = now_ns
            elif now_ns - each.gone_ns >= GONE_NS:
                went.append(each)
        self.all = [each for each in self.all if each not in went]
        return went
