"""The kernel's TTFT and gaps against a client's, which has real-time priority and receive stamps.

The client measures from its write to the stamp, the kernel from the request's arrival to the
chunk's leaving: what is left between them is the loopback. Of a stream's gaps the longest is
compared, which both tell of each stream.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bpf.layout import Event, EventKind
from demo.client import Lateness, Record, plan_lines, read_results
from demo.trace import Request
from tests.bench.ground import ROOT, Ground, Part
from tests.bench.quantiles import spread
from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import engine_target

PACER: Final = str(Path(__file__).parent / "pacer.py")
ENGINE_CPU: Final = 0
CLIENT_CPU: Final = 1
TOKENS: Final = 20
GAP_MS: Final = 20
NEIGHBOURS: Final = 2
PATIENCE_S: Final = 120.0


def measure(ground: Ground, idle_streams: int = 300, loaded_streams: int = 1_000) -> Part:
    """Few streams on an idle machine; then some 40 at a time beside busy loops on its CPU."""
    idle = _phase(ground, _plan(idle_streams, per_s=12), neighbours=0)
    loaded = _phase(ground, _plan(loaded_streams, per_s=100), neighbours=NEIGHBOURS)
    return {"idle": idle, "loaded": loaded}


def _plan(streams: int, per_s: float) -> list[Request]:
    return [Request(number / per_s, 16, TOKENS) for number in range(streams)]


def _phase(ground: Ground, plan: Sequence[Request], neighbours: int) -> Part:
    group = ground.make_group("paced")
    with (
        child(PACER, str(GAP_MS), group=group, cpu=ENGINE_CPU) as server,
        ground.watched() as watched,
        _burning(ground, neighbours),
    ):
        server.tell()
        port = int(server.answer())
        row = watched.watch(engine_target("engine", group, port))
        watched.programs.attach(group.v2, group.stream_id)
        look = watched.look(row)
        records, late = _run_client(port, plan)
        ends = look.of_kind(EventKind.END)
    ttft_ms, gap_ms = errors(records, ends)
    return {
        "streams": len(plan),
        "compared": len(ttft_ms),
        "failed": sum(bool(record.error) for record in records),
        **spread("ttft_error_ms", ttft_ms),
        **spread("gap_error_ms", gap_ms),
        "client_read_late_us_p99": late.read_us.p99,
        "client_realtime": late.realtime,
    }


def errors(records: Iterable[Record], ends: Iterable[Event]) -> tuple[list[float], list[float]]:
    """How far the two are apart, in ms: of each stream its TTFT and its longest gap."""
    by_port: dict[int, list[Event]] = defaultdict(list)
    for end in ends:
        by_port[end.stream.remote_port].append(end)
    ttft_ms, gap_ms = [], []
    for record in records:
        seen = min(
            by_port[record.port],
            key=lambda end: abs(end.stream.request_ns - record.sent_ns),
            default=None,
        )
        if seen is None or seen.stream.ttft_ns is None or record.ttft_ms is None:
            continue
        ttft_ms.append(abs(seen.stream.ttft_ns / 1e6 - record.ttft_ms))
        if record.gaps_ms:
            gap_ms.append(abs(seen.stream.gap_max_ns / 1e6 - max(record.gaps_ms)))
    return ttft_ms, gap_ms


@contextmanager
def _burning(ground: Ground, count: int) -> Iterator[None]:
    if not count:
        yield
        return
    with child("task.py", "burn", group=ground.make_group("neighbour"), cpu=ENGINE_CPU) as burner:
        burner.tell()
        with _burning(ground, count - 1):
            yield


def _run_client(port: int, plan: Sequence[Request]) -> tuple[list[Record], Lateness]:
    with TemporaryDirectory() as directory:
        plan_file, out = Path(directory, "plan"), Path(directory, "out")
        plan_file.write_text("".join(plan_lines(plan)))
        options = {"--port": port, "--plan": plan_file, "--out": out, "--cpu": CLIENT_CPU}
        command = [sys.executable, "-m", "demo.client"]
        command += [str(each) for option in options.items() for each in option]
        subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_S)
        return read_results(out)
