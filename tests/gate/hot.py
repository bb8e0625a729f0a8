"""The paths of ours that run most often, each as a function that takes it once.

Run as `python -m tests.gate.hot`: takes each path again and again, and calls C's `ctermid`, which
nothing else here does, before, after `TIMES` turns, and after twice as many more. So an observer of
the process can tell what lies between. Prints the paths' names, in order.
"""

import gc
import json
import mmap
import os
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from bpf.layout import COUNTERS, EVENT, HEALTH, STREAM, EventKind, parse_event
from bpf.readers import CounterReader
from controller.engines.contract import Hello, Knob
from controller.engines.page import PageWriter
from controller.plugins.vllm.hand import RECOUNT_STEPS, Hand
from controller.plugins.vllm.knobs import Limits, offered, traits_of
from controller.plugins.vllm.kv_cache import KvCache
from controller.plugins.vllm.leased import Leased
from controller.plugins.vllm.scheduler import extended
from controller.policy_model import Engine, Match
from controller.recording import decide_batch_of, decide_cpu_of, inputs_of
from controller.watch import EngineWatch
from tests.engines.vllm.inside.planned import Planned

INPUTS: Final = Path(__file__).parent / "inputs.json"
TIMES: Final = RECOUNT_STEPS
"""The plug-in counts the cached tokens anew after so many steps."""

WARM: Final = RECOUNT_STEPS
"""Turns before: the interpreter fits itself to what it runs."""

RUNNING: Final = 32
TICK_NS: Final = 17_000_000
EVENT_BYTES: Final = EVENT.size + STREAM.size

Turn = Callable[[], object]


def paths(directory: Path) -> dict[str, Turn]:
    """Every path by its name; files it needs are made in `directory`."""
    made: dict[str, Turn] = {}
    for cpus in (2, 256):
        reader = reader_of(cpus)
        made[f"counters of a target, {cpus} CPUs"] = partial(reader.counters, 1)
        made[f"CPU time of a target, {cpus} CPUs"] = partial(reader.run_ns, 1)
    made["collect an engine"] = collecting(directory)
    made["an event of a stream"] = event()
    for name, fields in json.loads(INPUTS.read_text()).items():
        inputs = inputs_of(fields)
        made[f"decide the batch, {name}"] = partial(decide_batch_of, inputs)
        made[f"decide the CPU, {name}"] = partial(decide_cpu_of, inputs)
    made[f"a step of the plug-in, {RUNNING} run"] = plugin_step(directory)
    return made


def reader_of(cpus: int) -> CounterReader:
    """A reader of two rows in which every CPU has counted something."""
    counters_fd = memory_file("counters", 2 * cpus * COUNTERS.size)
    health_fd = memory_file("health", cpus * HEALTH.size)
    with mmap.mmap(counters_fd, os.fstat(counters_fd).st_size) as counters:
        for row in range(2 * cpus):
            values = (10**9 + row, 10**8 + row, 1000 + row, *range(39))
            COUNTERS.pack_into(counters, row * COUNTERS.size, *values)
    reader = CounterReader(counters_fd, health_fd, 2, cpus)
    for fd in (counters_fd, health_fd):
        os.close(fd)
    return reader


def memory_file(name: str, size: int) -> int:
    """As large as the pages that the kernel would map."""
    fd = os.memfd_create(name)
    os.truncate(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    return fd


def event() -> Turn:
    """The end of a stream, as it comes from the ring."""
    fields = (*range(10**12, 10**12 + 13), *range(12), 200, 3, 8000, 40_000, 2, b"\x7f\0\0\1")
    raw = EVENT.pack(10**12, EventKind.END, 1) + STREAM.pack(*fields)
    return lambda: parse_event(raw)


def collecting(directory: Path) -> Turn:
    """What a tick reads and makes of an engine, one of whose steps has just ended."""
    watch = EngineWatch(
        Engine("e", Match("port", 1), admin_socket=directory / "none"), 1, None, 500
    )
    page, reader = PageWriter(directory / "collected"), reader_of(2)
    knobs = {"max_running": Knob("max_running", 1, 64, 64, "requests")}
    assert watch.link is not None
    watch.link._showing.begin(
        Hello("test", "1", "first", 1, knobs, page=str(page.path)), restarted=False
    )
    ticks = count(1)

    def turn() -> None:
        index = next(ticks)
        now_ns = 10**12 + index * TICK_NS
        prefill, decode, kv = index * 397 % 2048, 8, 4000
        step_ns = 8_000_000 + 60_000 * prefill
        now = (
            now_ns,
            index,
            2,
            decode,
            600,
            now_ns - step_ns,
            kv,
            60_000,
            index,
            index,
            100 * index,
        )
        page.publish(array("Q", (*now, *[0] * 11)), (index, now_ns, step_ns, prefill, decode, kv))
        watch.look_first(now_ns)
        watch.take(now_ns, reader.counters(1), 0, 0.0, 0.1)

    return turn


def plugin_step(directory: Path) -> Turn:
    """What a step of vLLM's pays for us while nothing changes, the page and all."""
    scheduler = scheduler_of(RUNNING)
    traits = traits_of(scheduler)
    knobs = offered(scheduler, traits)
    limits, cache = Limits(scheduler, traits, knobs), KvCache(scheduler)
    leased = Leased(knobs, cache.total, limits.budget, PageWriter(directory / "page"))
    plan = SimpleNamespace(
        total_num_scheduled_tokens=RUNNING,
        num_scheduled_tokens={str(number): 1 for number in range(RUNNING)},
        scheduled_new_reqs=[],
    )
    made = extended(Planned)
    engine = made.__new__(made)
    engine.plan = plan
    engine._sits = Hand(scheduler, traits, limits, cache, leased)

    def step() -> None:
        engine.schedule(False)
        engine.update_from_output(plan, None)

    return step


def scheduler_of(running: int) -> Any:
    """What the plug-in reads of a scheduler of vLLM's, with so many sequences that decode."""
    queue = SimpleNamespace(num_free_blocks=1000)
    return SimpleNamespace(
        running=[SimpleNamespace(num_computed_tokens=500) for _ in range(running)],
        waiting=deque(),
        max_num_running_reqs=64,
        max_num_scheduled_tokens=2048,
        scheduler_config=SimpleNamespace(
            enable_chunked_prefill=True, long_prefill_token_threshold=0
        ),
        cache_config=SimpleNamespace(block_size=16),
        kv_cache_config=SimpleNamespace(kv_cache_groups=(0,)),
        kv_cache_manager=SimpleNamespace(
            block_pool=SimpleNamespace(
                num_gpu_blocks=2001, free_block_queue=queue, get_num_free_blocks=lambda: 1000
            )
        ),
    )


def take(each: Mapping[str, Turn], mark: Callable[[], object]) -> list[str]:
    """Take each path, with a `mark` before, after `TIMES` turns, and after twice as many more."""
    for path in each.values():
        turns(path, WARM)
        mark()
        turns(path, TIMES)
        mark()
        turns(path, 2 * TIMES)
        mark()
    return list(each)


def turns(path: Turn, times: int) -> None:
    """Take a path so often."""
    for _ in range(times):
        path()


def main() -> None:
    """All paths, in a process that is observed."""
    each = paths(Path(os.environ["GATE_DIRECTORY"]))
    gc.collect()
    gc.disable()
    print(json.dumps(take(each, os.ctermid)))


if __name__ == "__main__":
    main()
