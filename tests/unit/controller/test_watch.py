import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from bpf.layout import Counters
from controller.attribution import Cause
from controller.backpressure import Queues
from controller.engines.page import EngineNow, PageWriter, Step
from controller.policy_model import Engine, Match, Slo
from controller.signals import Signals
from controller.step_model import TRUST_STEPS, WARM_UP_STEPS, StepModel
from controller.watch import ARRIVALS_NS, LOAD_EVERY_NS, LOADS_KEPT, WINDOW_NS, EngineWatch
from controller.watch_status import status_of

from .peers import PAGELESS, STATE, Peer
from .rig import Cgroups
from .situations import MS, SECOND

ALONE: Final = Engine("e", Match("port", 1), slo=Slo(ttft_ms=1000, gap_ms=100))
TICK_NS: Final = 20 * MS


class Lab:
    """A watch with a connected engine, whose page the test writes."""

    def __init__(self, directory: Path) -> None:
        path = directory / "e.sock"
        self.page = PageWriter(directory / "page")
        self.watch = EngineWatch(replace(ALONE, admin_socket=path), 1, None, 500)
        peer = Peer(path)
        assert self.watch.link is not None
        self.watch.link.tick(time.monotonic_ns())
        hello = replace(PAGELESS, page=str(self.page.path))
        for call, fields in (("hello", hello.as_dict()), ("get", dict(STATE))):
            peer.answer(peer.request(call), **fields)
            assert self.watch.link.client is not None
            assert select.select([self.watch.link.client], [], [], 5)[0]
            self.watch.link.on_readable(time.monotonic_ns())
        peer.close()
        self.now_ns = 1000 * SECOND
        self.counters = Counters()
        self.now = EngineNow()

    def take(self, after_ns: int = TICK_NS, **growth: int) -> None:
        self.now_ns += after_ns
        self.counters = grown(self.counters, **growth)
        self.watch.take(self.now_ns, self.counters, 0, 0.0, 0.1)
        self.watch.look_ahead()

    def step(self, step_ns: int, prefill: int = 10, **now: int) -> None:
        """The engine ends a step now."""
        self.now = replace(self.now, steps=self.now.steps + 1, **now)
        end_ns = self.now_ns + TICK_NS
        self.page.write(self.now, Step(self.now.steps, end_ns, step_ns, prefill, 4, 1000))

    def hold(self, point: Mapping[str, float]) -> None:
        """As if the core had decided for this operating point."""
        core = self.watch.core
        self.watch.core = replace(core, batch=replace(core.batch, point=point))

    def close(self) -> None:
        assert self.watch.link is not None
        self.watch.link.close()
        self.page.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.fixture
def alone() -> EngineWatch:
    """A watch of an engine without an admin socket."""
    return EngineWatch(ALONE, 1, None, 500)


def grown(counters: Counters, **growth: int) -> Counters:
    return counters._replace(**{name: getattr(counters, name) + by for name, by in growth.items()})


def take(watch: EngineWatch, now_ns: int, counters: Counters, injected: float = 0.0) -> Signals:
    return watch.take(now_ns, counters, 0, injected, 0.1)


def cause_of(watch: EngineWatch) -> Cause:
    return watch.verdict.cause


def test_what_was_counted_before_the_watch_began_is_not_the_windows(alone: EngineWatch) -> None:
    signals = take(alone, SECOND, Counters(gaps_over=1000, run_ns=10**12))
    assert signals.kernel == Counters()
    assert cause_of(alone) is Cause.NONE


def test_the_window_slides(alone: EngineWatch) -> None:
    counters = Counters()
    for i in range(100):
        counters = grown(counters, chunks=1)
        signals = take(alone, i * TICK_NS, counters)
        assert signals.window_ns == min(i * TICK_NS, WINDOW_NS)
        assert signals.kernel.chunks == signals.window_ns // TICK_NS


def test_a_risk_is_over_when_it_left_the_window(alone: EngineWatch) -> None:
    counters = Counters()
    take(alone, 0, counters)
    counters = grown(counters, gaps_over=1)
    take(alone, TICK_NS, counters)
    assert cause_of(alone) is Cause.BATCH
    take(alone, WINDOW_NS, counters)
    assert cause_of(alone) is Cause.BATCH
    take(alone, WINDOW_NS + TICK_NS, counters)
    take(alone, WINDOW_NS + 2 * TICK_NS, counters)
    assert cause_of(alone) is Cause.NONE


def test_after_a_change_what_came_before_it_counts_no_more(lab: Lab) -> None:
    lab.take()
    lab.step(90 * MS)
    lab.take(gaps_over=1)
    assert lab.watch.signals is not None
    assert lab.watch.signals.longest_step_ns == 90 * MS
    lab.watch.restart_window()
    lab.take(chunks=3)
    assert lab.watch.signals.window_ns == TICK_NS
    assert lab.watch.signals.kernel == Counters(chunks=3)
    assert lab.watch.signals.longest_step_ns == 0


def test_steps_are_the_windows_by_their_end(lab: Lab) -> None:
    lab.step(90 * MS)
    lab.take()
    lab.step(30 * MS)
    lab.take()
    assert lab.watch.signals is not None
    assert lab.watch.signals.longest_step_ns == 90 * MS
    for _ in range(WINDOW_NS // TICK_NS):
        lab.take()
    assert lab.watch.signals.longest_step_ns == 30 * MS
    lab.take()
    lab.take()
    assert lab.watch.signals.longest_step_ns == 0


def test_steps_teach_the_model(lab: Lab) -> None:
    for _ in range(WARM_UP_STEPS + 5):
        lab.step(20 * MS)
        lab.take(run_ns=18 * MS)
    assert lab.watch.core.model.steps == 5
    assert lab.watch.core.model.prefill_steps == 5


def test_a_step_far_beyond_the_model_is_not_its_batchs(lab: Lab) -> None:
    for _ in range(WARM_UP_STEPS + TRUST_STEPS + 5):
        lab.step(20 * MS)
        lab.take(run_ns=18 * MS)
    assert lab.watch.core.model.trusted
    lab.step(190 * MS)
    lab.take(run_ns=18 * MS, gaps_over=4)
    assert lab.watch.signals is not None
    assert lab.watch.signals.longest_step_ns == 190 * MS
    assert lab.watch.signals.longest_computed_ns == 20 * MS
    assert cause_of(lab.watch) is Cause.UNKNOWN


@pytest.mark.parametrize(("taken_ns", "learnt"), [(1 * MS, 5), (2 * MS, 5), (3 * MS, 0)])
def test_steps_teach_nothing_while_others_are_to_blame(
    lab: Lab, taken_ns: int, learnt: int
) -> None:
    for _ in range(WARM_UP_STEPS + 5):
        lab.step(20 * MS)
        lab.take(run_ns=20 * MS - taken_ns, wait_ns=taken_ns, wait_other_ns=taken_ns)
    assert lab.watch.core.model.steps == learnt


def test_the_arrival_rate_is_that_of_the_last_seconds(lab: Lab) -> None:
    for i in range(2 * ARRIVALS_NS // TICK_NS):
        early = i < ARRIVALS_NS // TICK_NS
        lab.now = replace(lab.now, prompt_tokens_total=lab.now.prompt_tokens_total + 20)
        if early:
            lab.now = replace(lab.now, prompt_tokens_total=lab.now.prompt_tokens_total + 200)
        lab.page.write(lab.now)
        lab.take()
        if i == ARRIVALS_NS // TICK_NS - 1:
            assert rate_of(lab) == pytest.approx(220 * SECOND / TICK_NS, rel=0.01)
    assert rate_of(lab) == pytest.approx(20 * SECOND / TICK_NS, rel=0.25)
    for _ in range(10):
        lab.now = replace(lab.now, prompt_tokens_total=lab.now.prompt_tokens_total + 20)
        lab.page.write(lab.now)
        lab.take()
    assert rate_of(lab) == pytest.approx(20 * SECOND / TICK_NS, rel=0.01)


def rate_of(lab: Lab) -> float:
    assert lab.watch.signals is not None
    return lab.watch.signals.arrival_tokens_per_s


def test_what_was_served_before_the_watch_began_is_no_arrival(lab: Lab) -> None:
    lab.page.write(EngineNow(prompt_tokens_total=10**9))
    for _ in range(20):
        lab.take()
    assert rate_of(lab) == 0


def test_what_the_quota_took_while_nobody_looked_is_of_no_window(tmp_path: Path) -> None:
    """Before the first look, and in a pause."""
    cgroups = Cgroups(tmp_path)
    cgroups.make("e")
    watch = EngineWatch(ALONE, 1, cgroups.group("e"), 500)
    took = []
    for at_ns in (10 * SECOND, 10 * SECOND + TICK_NS, 60 * SECOND, 60 * SECOND + TICK_NS):
        if at_ns == 60 * SECOND:
            watch.resume(at_ns)
        cgroups.write("e", "cpu.stat", f"nr_periods 1\nnr_throttled 1\nthrottled_usec {at_ns}")
        watch.look_first(at_ns)
        took.append(watch.take(at_ns, Counters(), 0, 0.0, 0.1).throttled_ns)
        watch.look_around(at_ns)
    watch.close()
    assert took == [0] * 4


def test_what_the_quota_takes_while_something_is_late_is_read_at_once(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    cgroups.make("e")
    watch = EngineWatch(ALONE, 1, cgroups.group("e"), 500)
    for number in range(1, 4):
        at_ns = 10 * SECOND + number * TICK_NS
        text = f"nr_periods 1\nnr_throttled 1\nthrottled_usec {1000 * number}"
        cgroups.write("e", "cpu.stat", text)
        watch.look_first(at_ns)
        signals = watch.take(at_ns, Counters(gaps_over=number), 0, 0.0, 0.1)
    watch.close()
    assert signals.throttled_ns == 2 * MS


def test_time_under_a_cause_adds_up(alone: EngineWatch) -> None:
    counters = Counters()
    for i in range(50):
        late = 10 <= i < 20
        counters = grown(counters, gaps_over=int(late))
        take(alone, i * TICK_NS, counters)
    # from the first late gap until the last of them, a tick old when seen, left the window
    assert alone.cause_ns == {"batch": 9 * TICK_NS + WINDOW_NS}


def test_an_injected_signal_presses(alone: EngineWatch) -> None:
    take(alone, 0, Counters(), injected=0.8)
    assert alone.pressure.value == 0.8
    assert status_of(alone)["backpressure"]["injected"] == 0.8


def test_what_the_agent_sees_in_the_sockets_presses(alone: EngineWatch) -> None:
    alone.queues = Queues(accept_fill=0.3, unsent=2)
    take(alone, 0, Counters(requests=5))
    pressure = status_of(alone)["backpressure"]
    assert (pressure["accept"], pressure["send"], pressure["value"]) == (0.3, 0.4, 0.4)


def test_the_engines_queues_are_kept_once_every_tenth_of_a_second(lab: Lab) -> None:
    first = lab.now_ns // LOAD_EVERY_NS
    for waiting in range(5 * LOADS_KEPT):
        lab.step(MS, waiting=waiting, running=2, requests_total=50, finished_total=9)
        lab.take()
    loads = status_of(lab.watch)["loads"]
    assert [index - first for index, *_ in loads] == list(range(1, LOADS_KEPT + 1))
    assert [load[1] for load in loads] == list(range(4, 5 * LOADS_KEPT, 5))
    assert {load[2:] for load in loads} == {(2, 50, 9)}


def test_a_restarted_engine_is_learnt_anew(lab: Lab) -> None:
    for _ in range(WARM_UP_STEPS + 5):
        lab.step(20 * MS, prompt_tokens_total=lab.now.prompt_tokens_total + 1000)
        lab.take(run_ns=18 * MS)
    assert rate_of(lab) > 0
    lab.hold({"max_running": 3.0})
    lab.watch.forget()
    assert lab.watch.core.model == StepModel()
    assert lab.watch.core.batch.point == {}
    lab.page.write(EngineNow(prompt_tokens_total=5))
    lab.take()
    assert rate_of(lab) == 0


def test_the_status_of_an_engine_without_a_socket_says_so(alone: EngineWatch) -> None:
    status = status_of(alone)
    assert status["admin"] == {"state": "none", "detail": "the policy names no admin socket"}
    assert (status["engine"], status["knobs"], status["now"]) == (None, {}, None)
    assert status["cpu_weight"] is None
    assert status["cause"] == "none"


def test_the_status_tells_what_is_held_and_what_the_engine_does(lab: Lab) -> None:
    queue = {"deferred": 1, "deferred_total": 4, "longest_deferral_ms": 900, "shed_total": 2}
    engine = EngineNow(running=3, waiting=1, kv_used=25, kv_total=100, epoch=7, **queue)
    lab.page.write(engine)
    lab.watch.base_weight = 100
    lab.watch.cpu = replace(lab.watch.cpu, weight=1000)
    lab.hold({"max_running": 3.0})
    lab.take(gaps_over=1)
    status = status_of(lab.watch)
    assert status["admin"]["state"] == "connected"
    assert status["engine"] == {"name": "test", "version": "1.0", "instance": "first"}
    assert status["knobs"]["max_running"] == {
        "value": 64,
        "start": 64,
        "unit": "requests",
        "held": True,
    }
    assert not status["knobs"]["max_queued"]["held"]
    assert status["now"]["kv_use"] == 0.25
    assert (status["now"]["running"], status["now"]["waiting"]) == (3, 1)
    assert queue.items() <= status["now"].items()
    assert status["cpu_weight"] == {"value": 1000, "base": 100}


def trust(lab: Lab) -> None:
    """Let the watch see steps until its model is trusted."""
    for index in range(80):
        lab.take()
        lab.step((10 + index % 7) * MS, prefill=10 * (index % 7 + 1), requests_total=1)
    lab.take()
    assert lab.watch.core.model.trusted


def test_a_restarted_controller_begins_with_what_was_learnt(lab: Lab, alone: EngineWatch) -> None:
    trust(lab)
    key, learnt = lab.watch.learnt({})
    assert learnt is not None
    model = lab.watch.core.model
    lab.watch.forget()
    lab.watch.remember({key: learnt})
    assert lab.watch.core.model.trusted
    assert lab.watch.core.model.theta == model.theta
    assert alone.learnt({}) == ("", None)


def test_what_is_remembered_takes_the_place_of_nothing_that_was_seen(lab: Lab) -> None:
    trust(lab)
    key, learnt = lab.watch.learnt({})
    assert learnt is not None
    before = lab.watch.core
    lab.watch.remember({key: replace(learnt, theta=(1.0, 1.0, 1.0, 1.0))})
    assert lab.watch.core == before
