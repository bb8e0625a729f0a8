"""`python -m tests.bench.loop_cost`: what the loop's stages cost with several engines in control.

The engines are reference engines with a small model, each in a cgroup of its own on the first CPU,
each with clients that never stop; `sitsd` runs in control mode on the others, unpinned. One line a
number of engines: P50 and P99 of collect, decide, actuate and the whole tick, as `sitsctl status`
gives them.
"""

import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import click

from tests.bench.ground import Part, ground, in_memory, private_bpffs
from tests.kernel.agent.rig import Site
from tests.kernel.agent.traffic import engine_in, load

SMALL: Final = ("--layers=1", "--width=32")
ANSWER_TOKENS: Final = 64
PAUSE_S: Final = 0.25
"""Between two requests of a client: neither the engines nor the clients are to want a whole CPU."""

STAGES: Final = ("collect_us", "decide_us", "actuate_us", "tick_ms")
OUT: Final = Path("build/loop_cost.json")


@click.command()
@click.option("--engines", "numbers", type=click.IntRange(1, 64), multiple=True, default=(1, 8))
@click.option("--clients", type=click.IntRange(1), default=2, help="Of each engine.")
@click.option("--seconds", type=click.FloatRange(1), default=20, help="Of each measurement.")
def main(*, numbers: tuple[int, ...], clients: int, seconds: float) -> None:
    """Measure the stages of the loop; the figures go to build/loop_cost.json."""
    found = {}
    for number in numbers:
        found[str(number)] = part = measure(number, clients, seconds)
        click.echo(line(number, part))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")


def measure(engines: int, clients: int, seconds: float) -> Part:
    """The loop's figures after `seconds` of control of so many engines."""
    with ExitStack() as stack:
        here = stack.enter_context(ground())
        pins = stack.enter_context(private_bpffs())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(in_memory(directory / "run"))
        site = Site(directory, pins / f"sits-{uuid4().hex[:12]}")
        stack.callback(site.unload)
        targets = []
        for number in range(engines):
            group = here.make_group(f"loop-{number}")
            place = directory / str(number)
            place.mkdir()
            engine = stack.enter_context(engine_in(group, place, *SMALL))
            stack.enter_context(load(engine, clients, ANSWER_TOKENS, pause_s=PAUSE_S))
            targets.append(
                f'[engines.e{number}]\ncgroup = "/{group.cpu.name}"\n'
                f'admin_socket = "{engine.admin}"\nslo = {{ ttft_ms = 500, gap_ms = 100 }}\n'
            )
        site.write("".join(targets), mode="control")
        sitsd = stack.enter_context(site.sitsd())
        sitsd.status(lambda status: all(connected(e) for e in status["engines"]))
        time.sleep(seconds)
        # an agent that is short of CPU has for a moment no word of the controller that is new
        loop = sitsd.status(lambda status: status["loop"] is not None)["loop"]
        return {stage: loop[stage] for stage in STAGES} | {
            "ticks": loop["ticks"],
            "late_ticks": loop["late_ticks"],
            "cpus": os.cpu_count(),
        }


def connected(engine: dict[str, Any]) -> bool:
    """Whether sitsd follows the engine and reaches its admin socket."""
    return bool(engine["found"] and engine["admin"]["state"] == "connected")


def line(engines: int, part: Part) -> str:
    """One line for a person."""
    stages = ", ".join(
        f"{stage} P50 {part[stage]['p50']:.3g} P99 {part[stage]['p99']:.3g}"
        for stage in STAGES
        if part[stage]["p50"] is not None
    )
    return f"{engines} engines: {stages}; {part['late_ticks']} of {part['ticks']} ticks late"


if __name__ == "__main__":
    main()
