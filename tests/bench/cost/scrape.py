"""What a scrape of 200 targets takes, and what it does to the loop.

A few engines and many neighbours, each a cgroup with a process that sleeps. In one run of sitsd
windows with a scrape every second alternate with windows without; how late the loop's ticks were in
each is told by the loop's own histogram, as the metrics have it, at its begin and end. Where
Debian's node_exporter is unpacked under build/, it is scraped beside it.
"""

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from tests.bench.ground import ROOT, Ground, ground, private_bpffs
from tests.kernel.agent.groups import inside
from tests.kernel.agent.rig import Site, Sitsd, free_port
from tests.kernel.agent.waiting import becomes

from .extent import Extent
from .figures import Figure, Found, alternate, ratios

ENGINES: Final = 8
TARGETS: Final = 200
EVERY_S: Final = 1.0
SETTLE_S: Final = 3.0
NODE_EXPORTER: Final = ROOT / "build" / "node-exporter" / "usr" / "bin" / "prometheus-node-exporter"
_LATE: Final = re.compile(
    r'^sits_loop_stage_seconds_bucket\{(?=[^}]*stage="late")[^}]*le="([^"]+)"[^}]*\} (\S+)$',
    re.MULTILINE,
)

Buckets = Mapping[float, float]
"""Counts by upper bound in seconds; each holds those below it too."""


def measure(extent: Extent) -> Found:
    """The figures `scrape.*`."""
    with ExitStack() as stack:
        on = stack.enter_context(ground())
        pins = stack.enter_context(private_bpffs())
        site = Site(
            Path(stack.enter_context(TemporaryDirectory())), pins / f"sits-{uuid4().hex[:12]}"
        )
        stack.callback(site.unload)
        site.write(_many(stack, on), "shadow", 1000)
        _raise_max_targets(site.policy)
        sitsd = stack.enter_context(site.sitsd())
        sitsd.status(lambda status: status["loop"] is not None and _all_found(status))
        other = stack.enter_context(_node_exporter())
        time.sleep(SETTLE_S)
        runs = alternate(
            extent.rounds,
            {
                "scraped": partial(_window, sitsd, extent.window_s, True),
                "left alone": partial(_window, sitsd, extent.window_s, False),
            },
        )
        peer = Figure(note=f"{NODE_EXPORTER.name} is not unpacked under build/ (`make bench`)")
        if other is not None:
            peer = Figure(tuple(_scrape_ms(other) for _ in range(extent.rounds)))
    return figures(runs, peer)


def figures(runs: Mapping[str, list[tuple[float, float]]], peer: Figure) -> Found:
    """Of scrape times and how late ticks were, window by window, both in ms."""
    late = {name: [lateness for _, lateness in of] for name, of in runs.items()}
    return {
        "scrape.ms_200_targets": Figure(
            tuple(took for took, _ in runs["scraped"]),
            f"{ENGINES} engines, {TARGETS - ENGINES} neighbours; the peer has its own metrics",
            {"node_exporter": peer},
        ),
        "scrape.loop_disturbance_ratio": Figure(
            ratios(late["scraped"], late["left alone"]),
            "P99 of a tick's lateness with a scrape a second by that without;"
            f" {Figure(tuple(late['scraped'])).median:.3g} ms and"
            f" {Figure(tuple(late['left alone'])).median:.3g} ms",
        ),
    }


def quantile(before: Buckets, after: Buckets, q: float) -> float:
    """The q quantile of what came between, in the buckets' unit; linear within a bucket.

    As Prometheus' histogram_quantile has it; the largest bound for what lies above it.
    """
    came = {bound: after[bound] - before[bound] for bound in sorted(after)}
    rank = q * came[max(came)]
    low = below = 0.0
    for bound, count in came.items():
        if count >= rank and count > below:
            return (
                low
                if bound == float("inf")
                else low + (bound - low) * (rank - below) / (count - below)
            )
        low, below = bound, count
    return low


def _window(sitsd: Sitsd, seconds: float, is_scraped: bool) -> tuple[float, float]:
    """The median scrape (0 without) and the P99 of a tick's lateness in one window, in ms."""
    took = []
    before, end_s = _late(sitsd), time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(EVERY_S, left_s))
        if is_scraped:
            took.append(_scrape_ms(f"{sitsd.site.url}/metrics"))
    late_ms = quantile(before, _late(sitsd), 0.99) * 1e3
    return sorted(took)[len(took) // 2] if took else 0.0, late_ms


def _late(sitsd: Sitsd) -> Buckets:
    return late_buckets(sitsd.get("/metrics")[1])


def late_buckets(text: str) -> Buckets:
    """How many ticks were how late, in a scrape's text."""
    return {float(bound): float(count) for bound, count in _LATE.findall(text)}


def _scrape_ms(url: str) -> float:
    begun_ns = time.monotonic_ns()
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()
    return (time.monotonic_ns() - begun_ns) / 1e6


def _many(stack: ExitStack, on: Ground) -> str:
    """The policy's tables of all targets, each of which is a cgroup with a sleeper."""
    text = ""
    for number in range(TARGETS):
        group = on.make_group(f"target-{number}")
        sleeper = subprocess.Popen(inside(group, "sleep", "infinity"))
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        table = "engines" if number < ENGINES else "neighbours"
        text += f'[{table}.t{number}]\ncgroup = "/{group.cpu.name}"\n'
    return text


def _raise_max_targets(policy: Path) -> None:
    policy.write_text(
        policy.read_text().replace("[agent]\n", f"[agent]\nmax_targets = {TARGETS}\n")
    )


def _all_found(status: Mapping[str, object]) -> bool:
    engines = status["engines"]
    assert isinstance(engines, list)
    return all(engine["found"] for engine in engines)


@contextmanager
def _node_exporter() -> Iterator[str | None]:
    """Where a node_exporter of ours answers, None if it is not here."""
    if not NODE_EXPORTER.is_file():
        yield None
        return
    port = free_port()
    with subprocess.Popen(
        [str(NODE_EXPORTER), f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        url = f"http://127.0.0.1:{port}/metrics"
        try:
            becomes(partial(_answers, url))
            yield url
        finally:
            process.kill()


def _answers(url: str) -> bool:
    with suppress(OSError):
        _scrape_ms(url)
        return True
    return False
