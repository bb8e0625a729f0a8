"""Samples every engine's stages ten times a second, in a thread of its own, for a minute back.

While nothing waits in any engine, four of five samples are left out.

A thread, because discovery can keep the main loop for longer than a sample. Listeners are read at
every sample, connections as often as costs `LOOK_SHARE` of a core and at least once a second; half
as often while nothing waits, and every three seconds while no request is there.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agent.discovery import Found
from agent.sockets import EngineSockets, Sockets
from agent.stages import SAMPLE_NS, Load, Sample
from bpf.layout import Counters

KEPT: Final = 600
CALM_EVERY: Final = 5
"""Of so many samples one is taken while nothing waits."""

LOOK_SHARE: Final = 0.001
MAX_LOOK_EVERY: Final = 10
"""In samples."""

CALM_LOOK_EVERY: Final = 20
REST_LOOK_EVERY: Final = 30
"""While nothing waits, and while an engine has nothing to do."""

LOAD_HOLDS: Final = 2
CALM_LOAD_HOLDS: Final = 12
"""For so many samples after it what an engine said of its queues is taken to be true. While all is
well its controller looks at it every 125 ms, and tells of it once a second."""

ENDS: Final = MAX_LOOK_EVERY
"""Among so many samples there is one that looked at the connections."""


class _Track:
    """What is kept of one engine."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.loads: dict[int, Load] = {}
        self.sockets = EngineSockets()
        self.looked = 0
        """The sample that looked at the connections last."""

        self.spacing = 1
        """In samples, until the next that may, by what the last look took."""

        self.waits = True
        self.works = True
        self.waiting = 0
        """In the engine, as far as it said last."""
        self.blocked = 0
        """What the kernel programs counted as blocked at the last look."""


class Sampler:
    """The thread and what it has seen. Every method may be called from any thread."""

    def __init__(
        self, counters: Callable[[str], Counters], waits: Callable[[], None] = lambda: None
    ) -> None:
        """`counters` are what the kernel counted for an engine so far.

        `waits` is called when something begins to wait, in this thread.
        """
        self._counters = counters
        self._waits = waits
        self._lock = threading.Lock()
        self._sockets = Sockets()
        self._watched: tuple[Found, ...] = ()
        self._changed = False
        self._tracks: dict[str, _Track] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close what is open."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._sockets.close()

    def watch(self, engines: Iterable[Found]) -> None:
        """From now on these; call it when the kernel programs watch them."""
        watched = tuple(each for each in engines if each.present)
        with self._lock:
            self._changed |= watched != self._watched
            self._watched = watched

    def heard(self, engine: str, cookie: int) -> None:
        """A stream was heard of on this connection."""
        self._sockets.heard(engine, cookie)

    def take_loads(self, engine: str, loads: Sequence[Sequence[int]]) -> None:
        """Add what the controller sampled of an engine: index and the fields of `Load`."""
        with self._lock:
            track = self._tracks.get(engine)
            if track is None:
                return
            track.loads |= {index: Load(*fields) for index, *fields in loads}
            track.waiting = next(reversed(track.loads.values())).waiting if track.loads else 0
            while len(track.loads) > KEPT:
                del track.loads[next(iter(track.loads))]

    def sockets(self, engine: str) -> EngineSockets:
        """The last look at an engine's sockets."""
        with self._lock:
            track = self._tracks.get(engine)
            return track.sockets if track is not None else EngineSockets()

    def samples(self, engine: str, seconds: float) -> list[Sample]:
        """An engine's samples of the last `seconds`, oldest first."""
        since_ns = time.monotonic_ns() - int(seconds * 1e9)
        with self._lock:
            track = self._tracks.get(engine)
            if track is None:
                return []
            kept = [sample for sample in track.samples if sample.at_ns >= since_ns]
            return [replace(sample, load=_load_at(track, sample.index)) for sample in kept]

    def ends(self, engine: str, seconds: float) -> list[Sample]:
        """The first and last of them: enough for rates and queues, cheap enough for a scrape."""
        kept = self.samples(engine, seconds)
        return kept[:ENDS] + kept[ENDS:][-ENDS:]

    def queues(self) -> Mapping[str, Any]:
        """The `queues` message for the controller."""
        with self._lock:
            return {
                "type": "queues",
                "engines": {
                    name: {
                        "accept_fill": track.sockets.accept_fill,
                        "unsent": track.sockets.unsent,
                        "blocked": track.blocked,
                    }
                    for name, track in self._tracks.items()
                },
            }

    def _run(self) -> None:
        while True:
            now_ns = time.monotonic_ns()
            waits = any(track.waits for track in self._tracks.values())
            index = now_ns // SAMPLE_NS + (1 if waits else CALM_EVERY)
            if self._stop.wait((index * SAMPLE_NS - now_ns) / 1e9):
                return
            self._follow()
            for name in list(self._tracks):
                self._sample(name)
            if not waits and any(track.waits for track in self._tracks.values()):
                self._waits()

    def _follow(self) -> None:
        with self._lock:
            if not self._changed:
                return
            watched, self._changed = self._watched, False
            names = {each.name for each in watched}
            for name in self._tracks.keys() - names:
                del self._tracks[name]
            for name in names - self._tracks.keys():
                self._tracks[name] = _Track()
        self._sockets.watch(watched)

    def _sample(self, name: str) -> None:
        track = self._tracks[name]
        index = time.monotonic_ns() // SAMPLE_NS
        counted = self._counters(name)
        blocked = counted.blocked_begun - counted.blocked_ended
        # what begins to wait is told of together with who does
        spacing = track.spacing if blocked > track.blocked else _spacing(track)
        looks = index >= track.looked + spacing
        try:
            if looks:
                began_ns = time.thread_time_ns()
                sockets = self._sockets.look(name)
                took_ns = time.thread_time_ns() - began_ns
                every = 1 + int(took_ns / (LOOK_SHARE * SAMPLE_NS))
                track.looked, track.spacing = index, min(every, MAX_LOOK_EVERY)
            else:
                sockets, listeners = track.sockets, self._sockets.listeners(name)
                if listeners != sockets.listeners:
                    sockets = replace(sockets, listeners=listeners)
        except OSError as error:
            looks, track.looked, track.spacing = False, index, MAX_LOOK_EVERY
            sockets = EngineSockets(detail=f"could not list its sockets: {error.strerror}")
        if looks:
            track.blocked = blocked
        sample = Sample(
            index=index,
            at_ns=time.monotonic_ns(),
            backlog=sockets.backlog,
            backlog_limit=sockets.backlog_limit,
            requests=counted.requests,
            reads=counted.reads,
            writes=counted.writes,
            chunks=counted.chunks,
            ended=counted.ends_complete + counted.ends_early,
            looked=looks,
            arrived=sockets.arrived,
            accepted=sockets.accepted,
            connections=len(sockets.connections),
            unread=sockets.unread,
            unsent=max(0, sockets.unsent + blocked - track.blocked),
            unsent_bytes=sockets.unsent_bytes,
            in_flight_bytes=sockets.in_flight_bytes,
        )
        with self._lock:
            track.waits = bool(sample.backlog or sample.unread or sample.unsent or track.waiting)
            track.works = track.waits or works(sample, track.samples[-1] if track.samples else None)
            track.sockets = sockets
            track.samples.append(sample)


def _load_at(track: _Track, index: int) -> Load | None:
    holds = LOAD_HOLDS if track.waits else CALM_LOAD_HOLDS
    earlier = (track.loads.get(index - back) for back in range(holds + 1))
    return next((load for load in earlier if load is not None), None)


def _spacing(track: _Track) -> int:
    """How many samples on from the last look at the connections the next is due."""
    if track.waits:
        return track.spacing
    return CALM_LOOK_EVERY if track.works else REST_LOOK_EVERY


def works(now: Sample, before: Sample | None) -> bool:
    """Whether an engine has something to do: requests are there, or were since the sample before.

    Turns on TLS and HTTP/2 connections are counted as no requests, but read and written.
    """
    if before is None or now.requests > now.ended:
        return True
    return (now.requests, now.reads, now.writes) != (before.requests, before.reads, before.writes)
