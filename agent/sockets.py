"""The sockets of engines: who listens, who waits to be accepted, which connections there are.

An engine in a network namespace of its own (a container) is read there. Connections that were
there before the agent can't be followed by the kernel programs until their next request: they are
told apart as `seeded`.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.discovery import Found
from agent.sock_diag import FAMILIES, Connection, Listener, SockDiag, open_in

_OURS: Final = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class EngineSockets:
    """An engine's sockets as last looked at.

    `connections` are the accepted ones; `seeded` the cookies of those on which no stream has been
    heard of since the agent came. `arrived` and `accepted` count connections that came since, as
    far as a look saw them. `unread` connections have bytes that the engine has not read, `unsent`
    ones bytes that it wrote and that have not left; in flight are those not acknowledged. `detail`
    says what can't be read, and why.
    """

    listeners: tuple[Listener, ...] = ()
    connections: tuple[Connection, ...] = ()
    seeded: frozenset[int] = frozenset()
    arrived: int = 0
    accepted: int = 0
    unread: int = 0
    unsent: int = 0
    unsent_bytes: int = 0
    in_flight_bytes: int = 0
    detail: str = ""

    @property
    def backlog(self) -> int:
        """Connections that wait to be accepted."""
        return sum(each.backlog for each in self.listeners)

    @property
    def backlog_limit(self) -> int:
        """How many may wait."""
        return sum(each.limit for each in self.listeners)

    @property
    def accept_fill(self) -> float:
        """How full the fullest accept queue is, 0…1.

        The kernel lets in one more than its limit before it drops handshakes.
        """
        fills = (each.backlog / each.limit for each in self.listeners if each.limit)
        return min(1.0, max(fills, default=0.0))


@dataclass(slots=True)
class _Engine:
    """What is remembered of one engine between looks.

    `known` has the cookies of the last one and whether they were accepted; None before the first.
    """

    ports: frozenset[int]
    namespaces: frozenset[int]
    detail: str = ""
    families: set[int] = field(default_factory=set)
    known: dict[int, bool] | None = None
    heard: set[int] = field(default_factory=set)
    seeded: set[int] = field(default_factory=set)
    arrived: int = 0
    accepted: int = 0


class Sockets:
    """Looks at the sockets of engines. One thread uses it, but for `heard`."""

    def __init__(self) -> None:
        """Nothing is opened before `watch`."""
        self._open: dict[int, SockDiag] = {}
        self._engines: dict[str, _Engine] = {}
        self._lock = threading.Lock()

    def watch(self, engines: Iterable[Found]) -> None:
        """From now on these; their connections of now count as seeded at the first look."""
        found = {each.name: each for each in engines if each.present and each.ports}
        kept = {}
        for name, each in found.items():
            before = self._engines.get(name)
            namespaces, detail = self._enter(each)
            same = before is not None and before.namespaces == namespaces
            engine = before if before is not None and same else _Engine(each.ports, namespaces)
            engine.ports, engine.detail = each.ports, detail
            kept[name] = engine
        self._engines = kept
        used = {namespace for engine in kept.values() for namespace in engine.namespaces}
        for namespace in self._open.keys() - used:
            self._open.pop(namespace).close()

    def heard(self, name: str, cookie: int) -> None:
        """A stream was heard of on this connection: the programs follow it. From any thread."""
        engine = self._engines.get(name)
        if engine is None:
            return
        with self._lock:
            if engine.known is None:
                engine.heard.add(cookie)
            engine.seeded.discard(cookie)

    def listeners(self, name: str) -> tuple[Listener, ...]:
        """The listeners that the last look found, as they are now: cheap; `OSError` as `look`."""
        engine = self._engines.get(name)
        return self._listeners(engine, engine.families) if engine is not None else ()

    def look(self, name: str) -> EngineSockets:
        """All of an engine's sockets: not so cheap. `OSError` if the kernel does not say."""
        engine = self._engines.get(name)
        if engine is None:
            return EngineSockets()
        listeners = self._listeners(engine, FAMILIES)
        engine.families.update(each.family for each in listeners)
        connections = [
            each
            for namespace in engine.namespaces
            for port in engine.ports
            for family in engine.families
            for each in self._open[namespace].connections(port, family)
        ]
        with self._lock:
            _count(engine, {each.cookie: each.accepted for each in connections})
            seeded = frozenset(engine.seeded)
        accepted = tuple(each for each in connections if each.accepted)
        return EngineSockets(
            listeners=listeners,
            connections=accepted,
            seeded=seeded,
            arrived=engine.arrived,
            accepted=engine.accepted,
            unread=sum(each.unread_bytes > 0 for each in accepted),
            unsent=sum(each.unsent_bytes > 0 for each in accepted),
            unsent_bytes=sum(each.unsent_bytes for each in accepted),
            in_flight_bytes=sum(each.in_flight_bytes for each in accepted),
            detail=engine.detail,
        )

    def close(self) -> None:
        """Close everything."""
        for each in self._open.values():
            each.close()
        self._open = {}
        self._engines = {}

    def _listeners(self, engine: _Engine, families: Iterable[int]) -> tuple[Listener, ...]:
        return tuple(
            each
            for namespace in engine.namespaces
            for port in engine.ports
            for each in self._open[namespace].listeners(port, families)
        )

    def _enter(self, found: Found) -> tuple[frozenset[int], str]:
        """The network namespaces of an engine's processes, open, and what could not be."""
        inside: set[int] = set()
        problems: dict[str, None] = {}
        ours = _OURS.stat().st_ino
        for pid in sorted(found.pids):
            path = Path(f"/proc/{pid}/ns/net")
            try:
                namespace = path.stat().st_ino
                if namespace not in self._open:
                    self._open[namespace] = SockDiag() if namespace == ours else open_in(path)
                inside.add(namespace)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it is just going away
            except OSError as error:
                problems[f"could not list its sockets: {error.strerror}"] = None
        return frozenset(inside), "; ".join(problems)


def _count(engine: _Engine, now: Mapping[int, bool]) -> None:
    if engine.known is None:
        engine.seeded = {cookie for cookie, accepted in now.items() if accepted}
        engine.seeded -= engine.heard
        engine.heard.clear()
    else:
        before = engine.known
        engine.arrived += len(now.keys() - before.keys())
        engine.accepted += sum(
            accepted and not before.get(cookie, False) for cookie, accepted in now.items()
        )
        engine.seeded &= now.keys()
    engine.known = dict(now)
