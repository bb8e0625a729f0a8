"""What the plug-in adds to a step of vLLM's own scheduler, the page and all.

    python cost.py MODEL

Prints one JSON array: by state of the scheduler, microseconds a step. vLLM's own planning takes
hundreds of microseconds, and their noise would hide ours; so a step is what the plug-in does around
it, with a plan that vLLM made in the middle of its work, given again and again for nothing.
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
from planned import Planned
from sits_vllm.scheduler import extended

CALLS, ROUNDS = 40, 2000
RUNNING = (16, 64)
WAITING = 100
HELD = {"max_batched_tokens": 1024}
RELEGATING = {**HELD, "ttft_deadline_ms": 3000, "prefill_tokens_per_s": 100_000}
DEFERRING = {**RELEGATING, "prefill_tokens_per_s": 1000}
COMPUTING = {"max_batched_tokens": 512}


def quickest(*works: Callable[[], Any]) -> list[float]:
    """Microseconds a call of each, of the quickest of many short rounds: what else runs only adds.

    By turns, so that all see the machine as it is at its best.
    """
    rounds: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for work, took in zip(works, rounds, strict=True):
            began = time.perf_counter_ns()
            for _ in range(CALLS):
                work()
            took.append((time.perf_counter_ns() - began) / CALLS / 1e3)
    return [min(took) for took in rounds]


def scheduler(
    model: str, running: int, values: dict[str, int], waiting: int, prompt: int
) -> tuple[Core, Any]:
    """A core in the middle of its work, and its next plan; it computes a `prompt` if that is set.

    That plan has a part of it, and is of the second step with one.
    """
    os.environ["SITS_ADMIN_SOCKET"] = str(Path(tempfile.mkdtemp()) / "admin.sock")
    core = Core(configuration(model, max_num_seqs=running), blocks=20_000)
    if values:
        core.scheduler._sits.leased.with_leases(
            lambda leases: leases.set(time.monotonic_ns(), "bench", 1, 10_000, values) or {}
        )
    for _ in range(running - bool(prompt)):
        core.add(64, 1800 if not prompt else 100)
    for _ in range(5):
        core.step()
    if prompt:
        core.add(prompt, 10)
        core.step()
    for number in range(waiting):
        core.add(100 + number % 50, 10)
    return core, core.scheduler.schedule()


def added(core: Core, plan: Any) -> tuple[float, float]:
    """Microseconds of a step that are ours, and those of them that the page takes."""
    hand, made = core.scheduler._sits, extended(Planned)
    ours = made.__new__(made)
    ours.plan, ours._sits = plan, hand
    leased, page = hand.leased, hand.leased.page

    def step(of: Any, shown_on: Any) -> Callable[[], None]:
        def work() -> None:
            leased.page = shown_on
            of.schedule(False)
            of.update_from_output(plan, None)

        return work

    bare, without_page, whole = quickest(
        step(Planned(plan), None), step(ours, None), step(ours, page)
    )
    if ours._sits is None:
        raise RuntimeError("the plug-in failed")
    return whole - bare, whole - without_page


def main() -> None:
    model = sys.argv[1]
    rows = []
    for running in RUNNING:
        for name, values, waiting, prompt in (
            ("nothing changes", {}, 0, 0),
            ("a lease is held", HELD, 0, 0),
            (f"{WAITING} wait, all on time", RELEGATING, WAITING, 0),
            (f"{WAITING} wait, some deferred", DEFERRING, WAITING, 0),
            ("a prompt is computed", COMPUTING, 0, 1900),
        ):
            core, plan = scheduler(model, running, values, waiting, prompt)
            whole, page = added(core, plan)
            rows.append(
                {
                    "running": running,
                    "when": name,
                    "prompts": bool(prompt),
                    "step": round(whole, 3),
                    "page": round(page, 3),
                }
            )
    print("\n" + json.dumps(rows))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
