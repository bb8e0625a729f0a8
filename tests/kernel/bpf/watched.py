"""A target under watch, and what the kernel said of it since we began to look."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bpf.histogram import Histogram
from bpf.layout import Counters, Edge, Event, EventKind, Health, parse_edge, parse_event
from bpf.libbpf import Ring
from bpf.loader import Programs
from bpf.readers import CounterReader, HistogramReader
from bpf.targets import Target, TargetTable

PATIENCE_S = 20.0


@dataclass(slots=True)
class Watched:
    """Loaded programs, and readers on all they count."""

    programs: Programs
    table: TargetTable
    reader: CounterReader
    events: list[Event] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    rings: list[Ring] = field(default_factory=list)

    def watch(self, *targets: Target) -> int:
        """Watch exactly these; returns the first one's row."""
        assert self.table.apply(targets) == []
        return self.table.rows[targets[0].name]

    def histogram(self, name: str, row: int) -> Histogram:
        """One of the maps `wait_histograms`, `ttft_histograms`, `gap_histograms`."""
        programs = self.programs
        return HistogramReader(programs.lib, programs.maps[name], programs.cpus).read(row)

    def consume(self) -> None:
        """Take what the rings hold."""
        for ring in self.rings:
            ring.consume()

    def look(self, row: int) -> "Look":
        """What happens to the target in `row` from now on."""
        self.consume()
        self.events.clear()
        self.edges.clear()
        return Look(self, row, self.reader.counters(row), self.reader.health())


@dataclass(frozen=True, slots=True)
class Look:
    """Everything since it was made."""

    watched: Watched
    row: int
    counters_before: Counters
    health_before: Health

    @property
    def counters(self) -> Counters:
        """What was counted for the target."""
        return self.watched.reader.counters(self.row).since(self.counters_before)

    @property
    def lost_streams(self) -> int:
        return self.watched.reader.health().lost_streams - self.health_before.lost_streams

    def of_kind(self, kind: EventKind) -> list[Event]:
        """The events of one kind, in order."""
        self.watched.consume()
        return [event for event in self.watched.events if event.kind is kind]

    def ends(self, count: int) -> list[Event]:
        """The ends of streams, once there are `count`: some come after the client saw its own."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.of_kind(EventKind.END)) < count and time.monotonic() < deadline:
            time.sleep(0.002)
        found = self.of_kind(EventKind.END)
        assert len(found) == count, found
        return found

    def end(self) -> Event:
        """The one stream's end."""
        return self.ends(1)[0]


@contextmanager
def watching(programs: Programs) -> Iterator[Watched]:
    """Readers on loaded programs; both are closed at the end."""
    maps = programs.maps
    reader = CounterReader(
        maps["counters"], maps["health"], programs.plan.max_targets, programs.cpus
    )
    watched = Watched(programs, TargetTable(programs), reader)
    lib = programs.lib
    watched.rings.append(
        Ring(lib, maps["edges"], lambda raw: watched.edges.append(parse_edge(raw)))
    )
    if "events" in maps:
        watched.rings.append(
            Ring(lib, maps["events"], lambda raw: watched.events.append(parse_event(raw)))
        )
    try:
        yield watched
    finally:
        for ring in watched.rings:
            ring.close()
        reader.close()
        programs.close()
