"""kill -9, again and again, of a process that loads the programs with pins, while streams run."""

import time
from contextlib import closing
from pathlib import Path
from typing import Final

from bpf.layout import Counters
from bpf.loader import Plan, load, unload
from bpf.readers import CounterReader
from bpf.targets import TargetTable
from tests.bench.exchange import ADDRESSES
from tests.bench.ground import MAX_TARGETS, Ground, Part, private_bpffs
from tests.bench.mix import connections
from tests.bench.traffic import Traffic
from tests.bench.truth import compare_totals, totals
from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import server

ROUNDS: Final = 50
PATIENCE_S: Final = 10.0


def measure(ground: Ground, seed: int, rounds: int = ROUNDS) -> Part:
    """The counters that are not what the clients say, after that many kills."""
    group = ground.make_group("engine")
    with private_bpffs() as bpffs, server(group, *ADDRESSES) as (_, ports):
        pins = bpffs / "kills"
        arguments = (str(pins), str(group.v2), str(group.stream_id), *map(str, ports))
        with child("holder.py", *arguments) as first:
            first.tell()
            first.answer()
        with child("holder.py", *arguments) as second:
            begun = time.monotonic()
            second.tell()
            second.answer()
            span_s = time.monotonic() - begun
        with Traffic(ports, connections(seed)) as traffic:
            for number in range(rounds):
                with child("holder.py", *arguments) as holder:
                    holder.tell()
                    # each a little later in its start, the last ones after it
                    time.sleep(span_s * 1.2 * number / rounds)
                    holder.kill()
            traffic.stop()
            expected = totals(traffic.truths.values())
            counters = _counted(ground, pins, expected["requests"])
    mismatch = compare_totals(expected, counters)
    return {
        "rounds": rounds,
        "streams": len(traffic.truths),
        "mismatch": len(mismatch),
        "fields": mismatch,
        "totals": expected,
        "client_faults": traffic.faults[:20],
    }


def _counted(ground: Ground, pins: Path, streams: int) -> Counters:
    """What the pinned programs have counted, once that many streams ended."""
    programs = load(ground.lib, Plan(ground.features, MAX_TARGETS, pins))
    maps = programs.maps
    try:
        row = TargetTable(programs).rows["engine"]
        reader = CounterReader(maps["counters"], maps["health"], MAX_TARGETS, programs.cpus)
        with closing(reader):
            deadline = time.monotonic() + PATIENCE_S
            while True:
                counters = reader.counters(row)
                ended = counters.ends_complete + counters.ends_early
                if ended >= streams or time.monotonic() > deadline:
                    return counters
                time.sleep(0.05)
    finally:
        programs.close()
        unload(pins)
