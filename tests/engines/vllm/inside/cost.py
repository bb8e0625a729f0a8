"""What the plug-in adds to a step of vLLM's own scheduler, part by part.

    python cost.py MODEL

Prints one JSON object: for so many requests running, microseconds a step. Each part is called again
and again on the state of a scheduler in the middle of its work, and timed by itself: beside the
hundreds of microseconds that vLLM's own planning takes, and their noise, the sum would not be seen.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core import Core, configuration
from sits_vllm.scheduler import extended

CALLS, ROUNDS = 300, 80
RUNNING = (16, 64)
WAITING = 100
HELD = {"max_batched_tokens": 1024}
RELEGATING = {**HELD, "ttft_deadline_ms": 3000, "prefill_tokens_per_s": 100_000}


def us(work: Callable[[], Any], calls: int = CALLS) -> float:
    """Microseconds a call, of the quickest of many short rounds: what else runs only adds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(calls):
            work()
        rounds.append((time.perf_counter_ns() - began) / calls / 1e3)
    return min(rounds)


def scheduler(model: str, running: int, values: dict[str, int], waiting: int) -> tuple[Core, Any]:
    """A core in the middle of its work, and its next plan."""
    os.environ["SITS_ADMIN_SOCKET"] = str(Path(tempfile.mkdtemp()) / "admin.sock")
    core = Core(configuration(model, max_num_seqs=running), blocks=20_000)
    hand = core.scheduler._sits
    if values:
        hand._leased.with_leases(
            lambda leases: leases.set(time.monotonic_ns(), "bench", 1, 10_000, values) or {}
        )
    for _ in range(running):
        core.add(64, 1800)
    core.step()
    for _ in range(4):
        core.step()
    for number in range(waiting):
        core.add(100 + number % 50, 10)
    return core, core.scheduler.schedule()


def interception() -> float:
    """Two methods that call ours and then vLLM's, instead of vLLM's alone."""

    class Base:
        def schedule(self, throttle: bool = False) -> None: ...

        def update_from_output(self, plan: Any, output: Any) -> None: ...

    class Nothing:
        def begin_step(self) -> None: ...

        def scheduled(self, output: Any) -> None: ...

        def end_step(self, output: Any) -> None: ...

    base = Base()
    made = extended(Base)
    ours = made.__new__(made)
    ours._sits = Nothing()

    def step(of: Any) -> Callable[[], None]:
        def work() -> None:
            of.schedule(False)
            of.update_from_output(None, None)

        return work

    return us(step(ours)) - us(step(base))


def parts(core: Core, plan: Any) -> dict[str, float]:
    """Each part of a step by itself, and what it costs beside that to write the page."""
    hand = core.scheduler._sits
    began = us(hand.begin_step)
    hand.end_step(None)

    def planned() -> None:
        hand.scheduled(plan)
        hand._planned.clear()

    def ended() -> None:
        hand.scheduled(plan)
        hand.end_step(None)
        hand._ended.clear()

    def shown() -> None:
        hand._due_ns = 0
        hand.scheduled(plan)
        hand.end_step(None)

    scheduled = us(planned)
    hand._due_ns = 2**63
    without_page = us(ended)
    return {
        "top": began,
        "plan": scheduled,
        "end": max(0.0, without_page - scheduled),
        "page": max(0.0, us(shown) - without_page),
    }


def main() -> None:
    model = sys.argv[1]
    caught = interception()
    rows = []
    for running in RUNNING:
        for name, values, waiting in (
            ("nothing changes", {}, 0),
            ("a lease is held", HELD, 0),
            (f"relegation, {WAITING} wait", RELEGATING, WAITING),
        ):
            core, plan = scheduler(model, running, values, waiting)
            found = {"interception": caught, **parts(core, plan)}
            page = found.pop("page")
            rows.append(
                {
                    "running": running,
                    "when": name,
                    **{part: round(cost, 3) for part, cost in found.items()},
                    "sum": round(sum(found.values()), 3),
                    "page": round(page, 3),
                }
            )
    print("\n" + json.dumps(rows))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
