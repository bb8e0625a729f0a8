"""`python -m tests.bench.soak`: sitsd under load for an hour, and nothing it has may grow.

A reference engine that clients never leave alone, in control mode, beside a neighbour that takes
its CPU for five seconds in twenty: so streams begin and end, weights are set and given back, and
decisions are journalled, all the time. Metrics, status and an explanation are asked for with each
sample. What it has: memory that is its own alone, file descriptors and threads of the agent and of
the controller, their processes, and pins. After a fifth of the time the medians of the first and
the last quarter of the rest are compared, see `ALLOWED`. Exit status 1 if one of them grew by more.

The agent keeps ten minutes of figures and 10,000 streams, which fill up in the first fifth of an
hour. In a shorter run they still do when it is measured, and as much is allowed for them.
"""

import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final
from uuid import uuid4

import click
import psutil

from tests.bench.ground import Part, ground, private_bpffs
from tests.bench.growth import WARM_UP_SHARE, Allowance, Growth, growth
from tests.clients import clients as meanwhile
from tests.kernel.agent.groups import burning
from tests.kernel.agent.rig import Site, Sitsd
from tests.kernel.agent.traffic import engine_in, load
from tests.kernel.conftest import TwinGroup

SMALL: Final = ("--layers=1", "--width=32")
CLIENTS: Final = 4
ANSWER_TOKENS: Final = 8
PAUSE_S: Final = 0.05
GAP_MS: Final = 20
BURNS_S: Final = 5.0
RESTS_S: Final = 15.0
SAMPLES: Final = 600
LEAST_BETWEEN_S: Final = 1.0
OUT: Final = Path("build/soak.json")

ALLOWED: Final[Mapping[str, Allowance]] = {
    "agent_kib": Allowance(0.05, 4_096),
    "controller_kib": Allowance(0.05, 2_048),
    "agent_fds": Allowance(0, 2),
    "controller_fds": Allowance(0, 2),
    "agent_threads": Allowance(0, 1),
    "controller_threads": Allowance(0, 1),
    "processes": Allowance(),
    "pins": Allowance(),
}
"""A descriptor and a thread more are those of a request that is under way."""

FILLS_MINUTES: Final = 12.0
FILLING_KIB: Final = 24 * 1024
"""What the agent keeps of the past takes at most, and how long it takes to fill."""


@click.command()
@click.option("--minutes", type=click.FloatRange(1), default=60)
def main(*, minutes: float) -> None:
    """Run it, print a line a figure, and write all samples to build/soak.json."""
    # as an exception, so that everything ends that was begun
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    samples, done = soak(minutes * 60)
    found = growth(samples, allowed(minutes))
    for each in found:
        click.echo(line(each))
    click.echo(", ".join(f"{name} {value}" for name, value in done.items()))
    OUT.parent.mkdir(exist_ok=True)
    grown = [asdict(each) | {"too_much": each.too_much} for each in found]
    OUT.write_text(json.dumps({"done": done, "growth": grown, "samples": samples}, indent=1) + "\n")
    sys.exit(any(each.too_much for each in found))


def allowed(minutes: float) -> Mapping[str, Allowance]:
    """By how much each figure may grow in a run of so many minutes."""
    agent = ALLOWED["agent_kib"]
    if minutes * WARM_UP_SHARE < FILLS_MINUTES:
        agent = Allowance(agent.share, agent.more + FILLING_KIB)
    return {**ALLOWED, "agent_kib": agent}


def line(grown: Growth) -> str:
    """One figure for a person."""
    verdict = "GREW" if grown.too_much else "ok"
    return f"{verdict:4} {grown.name}: {grown.first:g}, then {grown.last:g} (most {grown.most:g})"


def soak(seconds: float) -> tuple[list[dict[str, float]], Part]:
    """The samples of so many seconds, and what was done meanwhile."""
    with ExitStack() as stack:
        here = stack.enter_context(ground())
        pins = stack.enter_context(private_bpffs())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = Site(directory, pins / f"sits-{uuid4().hex[:12]}")
        stack.callback(site.unload)
        group, neighbour = here.make_group("soak"), here.make_group("soak-neighbour")
        engine = stack.enter_context(engine_in(group, directory, *SMALL))
        site.write(
            f"""
[engines.chat]
cgroup = "/{group.cpu.name}"
admin_socket = "{engine.admin}"
slo = {{ ttft_ms = 500, gap_ms = {GAP_MS} }}
[neighbours.n]
cgroup = "/{neighbour.cpu.name}"
""",
            mode="control",
        )
        sitsd = stack.enter_context(site.sitsd())
        sitsd.following()
        stack.enter_context(now_and_then(neighbour))
        traffic = stack.enter_context(load(engine, CLIENTS, ANSWER_TOKENS, pause_s=PAUSE_S))
        samples = list(taken(sitsd, seconds))
        assert traffic.failures == []
        status = sitsd.api.status()
        assert status["controller"]["restarts"] == 0, sitsd.log
        decisions = len(sitsd.decisions())
        assert decisions, "nothing was decided: that was no load"
        return samples, {
            "minutes": seconds / 60,
            "streams": len(traffic.seen),
            "decisions_in_the_last_1000": decisions,
            "agent_cpu_s": round(cpu_s(sitsd.process.pid), 1),
            "controller_cpu_s": round(cpu_s(status["controller"]["pid"]), 1),
            "journal_mib": round((directory / "state/journal.db").stat().st_size / 2**20, 1),
        }


def taken(sitsd: Sitsd, seconds: float) -> Iterator[dict[str, float]]:
    """A sample now and then, each after the agent was asked for all it tells."""
    began_s = time.monotonic()
    between_s = max(LEAST_BETWEEN_S, seconds / SAMPLES)
    number = 0
    while (at_s := time.monotonic() - began_s) < seconds:
        status = sitsd.api.status()
        sitsd.api.explain("chat", 10)
        assert sitsd.get("/metrics")[0] == 200
        yield {"at_s": round(at_s, 1), **figures(sitsd, status["controller"]["pid"])}
        number += 1
        time.sleep(max(0.0, began_s + number * between_s - time.monotonic()))


def figures(sitsd: Sitsd, controller: int) -> dict[str, float]:
    """What sitsd has at this moment."""
    found: dict[str, float] = {}
    for name, pid in (("agent", sitsd.process.pid), ("controller", controller)):
        process = psutil.Process(pid)
        found[f"{name}_kib"] = process.memory_full_info().uss / 1024
        found[f"{name}_fds"] = process.num_fds()
        found[f"{name}_threads"] = process.num_threads()
    found["processes"] = len(psutil.Process(sitsd.process.pid).children(recursive=True))
    found["pins"] = sum(1 for _ in sitsd.site.pin_dir.rglob("*"))
    return found


def cpu_s(pid: int) -> float:
    """CPU time that a process has taken."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def now_and_then(neighbour: TwinGroup) -> Iterator[None]:
    """Meanwhile a neighbour burns the engine's CPU for a while, and rests for a while."""

    def run(stop: threading.Event) -> None:
        while not stop.wait(RESTS_S):
            with burning(neighbour):
                stop.wait(BURNS_S)

    with meanwhile(1, run):
        yield


if __name__ == "__main__":
    main()
