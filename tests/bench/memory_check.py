"""`python -m tests.bench.memory_check`: what the check before a raise takes, of seed B3's 12 ms.

In CPU time of this thread, so that who else wants the machine does not count.
"""

import time

import click

from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.feasibility import room_of, within
from controller.memory_reader import MemoryReader
from controller.memory_sentinel import Bound, MemoryView, SentinelMemory

ALLOWED_US = 12_000
MIB = 1 << 20
KNOBS = {
    "max_running": Knob("max_running", 1, 64, 64, "requests"),
    "max_batched_tokens": Knob("max_batched_tokens", 16, 2048, 2048, "tokens"),
}
PATHS = ("/pods/a/engine", "/pods/a", "/pods", "")
VIEW = MemoryView(
    tuple(Bound(path, 1000 * MIB, 300 * MIB, growth=3.0 * MIB) for path in PATHS),
    per_request=7.0 * MIB,
)
NOW = EngineNow(running=20, kv_used=5_000, kv_total=10_000)


def check() -> None:
    """One check, of both knobs, against four limits and the KV cache."""
    room = room_of(VIEW, SentinelMemory(), NOW)
    before = {"max_running": 20, "max_batched_tokens": 800}
    within(room, {"max_running": 60, "max_batched_tokens": 2000}, before, KNOBS)


@click.command()
@click.option("--times", type=click.IntRange(100), default=20_000)
def main(times: int) -> None:
    """Print the median and the P99 of the check, and what a look at the machine's memory takes."""
    taken = []
    for _ in range(times):
        began_ns = time.thread_time_ns()
        check()
        taken.append((time.thread_time_ns() - began_ns) / 1e3)
    taken.sort()
    p50, p99 = taken[times // 2], taken[times * 99 // 100]
    click.echo(
        f"check before a raise: {p50:.1f} µs, P99 {p99:.1f} µs, 1/{ALLOWED_US / p99:.0f} of 12 ms"
    )
    reader = MemoryReader(None)
    began_ns = time.thread_time_ns()
    for _ in range(1_000):
        reader.read()
    click.echo(f"look at the machine's memory: {(time.thread_time_ns() - began_ns) / 1e6:.0f} µs")
    reader.close()


if __name__ == "__main__":
    main()
