"""Streams of mixed kinds, each held against what is true of it, and all against the counters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.bench.exchange import ADDRESSES
from tests.bench.ground import Ground, Part
from tests.bench.mix import connections
from tests.bench.traffic import Ends, Traffic
from tests.bench.truth import compare, compare_totals, summary, totals
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.watched import Watched

SHOWN: Final = 20
"""So many mismatches are written out."""


@contextmanager
def engine(ground: Ground) -> Iterator[tuple[Watched, int, list[int]]]:
    """A followed server in a cgroup of its own: what watches it, its row, its ports."""
    group = ground.make_group("engine")
    with server(group, *ADDRESSES) as (_, ports), ground.watched() as watched:
        row = watched.watch(engine_target("engine", group, *ports))
        watched.programs.attach(group.v2, group.stream_id)
        yield watched, row, ports


def measure(ground: Ground, count: int, seed: int) -> Part:
    """`count` streams: how many the kernel saw otherwise, in which field and of which kind."""
    with engine(ground) as (watched, row, ports):
        look = watched.look(row)
        ends = Ends(watched)
        with Traffic(ports, connections(seed, count)) as traffic:
            ends.follow(traffic)
            counters, health = look.counters, watched.reader.health()
        before = look.health_before
    mismatches = compare(traffic.truths, ends.by_number)
    expected = totals(traffic.truths.values())
    lost = sum(truth.kind == "no HTTP" for truth in traffic.truths.values())
    return summary(traffic.truths, mismatches) | {
        "seed": seed,
        "missing": len(traffic.truths.keys() - ends.by_number.keys()),
        "unknown_ends": len(ends.unknown),
        "totals": expected,
        "total_mismatch": compare_totals(expected, counters),
        "lost": [lost, health.lost_streams - before.lost_streams],
        "event_drops": health.event_drops - before.event_drops,
        "client_faults": traffic.faults[:SHOWN],
        "mismatches": [str(each) for each in mismatches[:SHOWN]],
    }
