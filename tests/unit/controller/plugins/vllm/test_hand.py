"""Steps as vLLM asks for them, on a scheduler that is planned by the test."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.engines.page import STEP_SLOTS, EngineNow, PageReader, PageWriter, Step
from controller.plugins.vllm.hand import Hand
from controller.plugins.vllm.knobs import Limits, offered, traits_of
from controller.plugins.vllm.kv_cache import KvCache
from controller.plugins.vllm.leased import Leased
from controller.plugins.vllm.scheduler import extended
from controller.serving.leases import Leases
from tests.engines.vllm.inside.planned import Planned
from tests.gate.hot import scheduler_of

RUNNING = 4
PLAN = SimpleNamespace(
    total_num_scheduled_tokens=RUNNING,
    num_scheduled_tokens={str(number): 1 for number in range(RUNNING)},
    scheduled_new_reqs=[],
)


class Site:
    """A scheduler with a hand in it, and who reads its page."""

    def __init__(self, directory: Path) -> None:
        self.scheduler = scheduler_of(RUNNING)
        self.scheduler.requests = {}
        traits = traits_of(self.scheduler)
        knobs = offered(self.scheduler, traits)
        limits, cache = Limits(self.scheduler, traits, knobs), KvCache(self.scheduler)
        writer = PageWriter(directory / "page")
        self.leased = Leased(knobs, cache.total, limits.budget, writer)
        made = extended(Planned)
        self.engine = made.__new__(made)
        self.engine.requests = self.scheduler.requests
        self.engine._sits = self.hand = Hand(self.scheduler, traits, limits, cache, self.leased)
        self.reader = PageReader(writer.path)

    def step(self, plan: Any = PLAN) -> None:
        """One step, taken back before the next."""
        self.plan(plan)
        self.take_back(plan)

    def plan(self, plan: Any) -> None:
        self.engine.plan = plan
        self.engine.schedule(False)

    def take_back(self, plan: Any) -> None:
        self.engine.update_from_output(plan, None)

    def set(self, epoch: int, **values: float) -> Any:
        return self.hold(epoch, 10_000, values)

    def hold(self, epoch: int, lease_ms: int, values: Mapping[str, float]) -> Any:
        def act(leases: Leases) -> dict[str, Any]:
            leases.set(time.monotonic_ns(), "test", epoch, lease_ms, values)
            return {}

        return self.leased.with_leases(act)

    def arrives(self, name: str, tokens: int) -> Any:
        request = SimpleNamespace(
            request_id=name,
            num_prompt_tokens=tokens,
            num_tokens=tokens,
            num_computed_tokens=0,
            arrival_time=time.time(),
            status=SimpleNamespace(name="FINISHED_STOPPED"),
        )
        self.hand.arrived(request)
        self.scheduler.requests[name] = request
        return request

    def shown(self) -> tuple[EngineNow, list[Step]]:
        got = self.reader.read()
        assert got is not None
        return got


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.leased.stop()
    made.reader.close()


def prompt(name: str, tokens: int, *, new: bool = False) -> Any:
    """A plan that computes tokens of one prompt beside those that decode."""
    return SimpleNamespace(
        total_num_scheduled_tokens=RUNNING + tokens,
        num_scheduled_tokens={**PLAN.num_scheduled_tokens, name: tokens},
        scheduled_new_reqs=[name] if new else [],
    )


def test_every_step_is_on_the_page_as_soon_as_it_ended(site: Site) -> None:
    for index in range(1, STEP_SLOTS + 6):
        site.step()
        now, steps = site.shown()
        assert (now.steps, now.generated_tokens_total) == (index, RUNNING * index)
        assert (steps[-1].index, steps[-1].end_ns) == (index, now.updated_ns)
        assert (steps[-1].prefill_tokens, steps[-1].decode_seqs) == (0, RUNNING)
    assert len(steps) == STEP_SLOTS


def test_what_attention_reads_grows_by_a_token_a_sequence(site: Site) -> None:
    for _ in range(3):
        site.step()
    assert [step.kv_tokens for step in site.shown()[1]] == [RUNNING, 2 * RUNNING, 3 * RUNNING]


def test_a_step_planned_ahead_begins_where_the_one_before_it_ended(site: Site) -> None:
    one, other = SimpleNamespace(**vars(PLAN)), SimpleNamespace(**vars(PLAN))
    site.plan(one)
    site.plan(other)
    assert site.leased.under_way
    site.take_back(one)
    assert site.leased.under_way
    site.take_back(other)
    assert not site.leased.under_way
    first, second = site.shown()[1]
    assert second.step_ns == second.end_ns - first.end_ns


def test_what_is_left_of_a_lease_is_never_more_than_it_however_long_its_thread_stood_still(
    site: Site,
) -> None:
    def act(leases: Leases) -> dict[str, Any]:
        time.sleep(0.02)
        leases.set(time.monotonic_ns(), "test", 1, 1_000, {})
        return {}

    assert site.leased.with_leases(act)["lease_ms_left"] <= 1_000


def test_idle_time_is_no_part_of_a_step(site: Site) -> None:
    site.step()
    running = site.scheduler.running[:]
    site.scheduler.running.clear()
    site.step()
    time.sleep(0.05)
    site.scheduler.running.extend(running)
    began_ns = time.monotonic_ns()
    site.step()
    last = site.shown()[1][-1]
    assert last.step_ns <= last.end_ns - began_ns


def test_a_prompt_waits_then_is_computed_then_decodes(site: Site) -> None:
    request = site.arrives("new", 100)
    now, _ = site.shown()
    assert (now.waiting, now.waiting_tokens, now.requests_total) == (1, 100, 1)
    # vLLM counts tokens as computed once they are planned; 16 were in its prefix cache
    request.num_computed_tokens = 76
    site.step(prompt("new", 60, new=True))
    now, steps = site.shown()
    assert (now.waiting, now.waiting_tokens, now.oldest_arrival_ns) == (0, 24, 0)
    assert (steps[-1].prefill_tokens, steps[-1].decode_seqs) == (60, RUNNING)
    assert steps[-1].kv_tokens == RUNNING + 76
    assert now.generated_tokens_total == RUNNING
    request.num_computed_tokens = 100
    site.step(prompt("new", 24))
    now, steps = site.shown()
    assert (now.waiting_tokens, steps[-1].prefill_tokens) == (0, 24)
    assert now.generated_tokens_total == 2 * RUNNING + 1
    site.step()
    assert site.shown()[1][-1].prefill_tokens == 0


def test_who_is_preempted_waits_again(site: Site) -> None:
    request = site.arrives("new", 100)
    request.num_computed_tokens = 100
    site.step(prompt("new", 100, new=True))
    site.hand.preempted(request)
    site.step()
    now, _ = site.shown()
    assert (now.waiting, now.waiting_tokens, now.preemptions_total) == (1, 100, 1)
    site.step(prompt("new", 100))
    assert site.shown()[0].waiting == 0


def test_who_leaves_is_counted_with_the_step_that_ended_it(site: Site) -> None:
    request = site.arrives("new", 100)
    request.num_computed_tokens = 100
    plan = prompt("new", 100, new=True)
    site.plan(plan)
    site.hand.left(request)
    site.take_back(plan)
    now, _ = site.shown()
    assert (now.finished_total, now.waiting, now.waiting_tokens) == (1, 0, 0)


def test_a_change_is_in_force_at_the_top_of_the_next_step(site: Site) -> None:
    site.plan(PLAN)
    assert site.set(1, max_batched_tokens=512)["state"] == "pending"
    assert site.scheduler.max_num_scheduled_tokens == 2048
    site.take_back(PLAN)
    site.step()
    assert site.scheduler.max_num_scheduled_tokens == 512
    assert site.shown()[0].max_batched_tokens == 512


def test_a_lease_that_ran_out_is_over_at_the_top_of_the_next_step(site: Site) -> None:
    site.hold(1, 10, {"max_batched_tokens": 512})
    site.step()
    assert site.scheduler.max_num_scheduled_tokens == 512
    time.sleep(0.011)
    site.step()
    assert site.scheduler.max_num_scheduled_tokens == 2048
    assert site.shown()[0].lease_expiries_total == 1


class Words:
    """The words of a page; `meanwhile` happens when the first of them is being written."""

    def __init__(self, page: PageWriter, meanwhile: Callable[[], None]) -> None:
        self._words = page.words
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __setitem__(self, place: int, value: int) -> None:
        self._words[place] = value
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def release(self) -> None:
        self._words.release()


def meet(site: Site, first: Callable[[], None], other: Callable[[], None]) -> bool:
    """Have `other` done by a thread while `first` writes the page; whether it waited for that."""
    page = site.leased.page
    assert page is not None
    thread = threading.Thread(target=other)
    waited = []

    def meanwhile() -> None:
        thread.start()
        thread.join(0.1)
        waited.append(thread.is_alive())

    page.words = Words(page, meanwhile)  # type: ignore[assignment]
    first()
    thread.join()
    assert page.sequence % 2 == 0
    assert site.engine._sits is not None
    return waited == [True]


def test_others_write_the_page_once_a_step_has_written_it(site: Site) -> None:
    site.step()
    assert meet(site, site.step, lambda: site.set(1, max_batched_tokens=512))
    now, steps = site.shown()
    assert (now.epoch, now.steps, len(steps)) == (1, 2, 2)


def test_a_step_writes_the_page_once_others_have_written_it(site: Site) -> None:
    site.step()
    assert meet(site, lambda: site.set(1, max_batched_tokens=512), site.step)
    now, steps = site.shown()
    assert (now.epoch, now.steps, len(steps)) == (1, 2, 2)


def test_a_step_that_ends_while_others_write_waits_for_them(site: Site) -> None:
    plan = PLAN
    site.plan(plan)
    assert meet(site, lambda: site.set(1, max_batched_tokens=512), lambda: site.take_back(plan))
    now, steps = site.shown()
    assert (now.steps, len(steps)) == (1, 1)


def test_after_a_failure_it_is_vllms_own_scheduler(site: Site) -> None:
    site.set(1, max_batched_tokens=512)
    site.step()
    site.hand.prompts = None  # type: ignore[assignment]
    site.set(2, max_batched_tokens=256)
    site.step()
    assert site.engine._sits is None
    assert site.scheduler.max_num_scheduled_tokens == 2048
    site.step()
    with pytest.raises(Exception, match="the plug-in failed"):
        site.set(3, max_batched_tokens=256)


class Older:
    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def schedule(self) -> Any:
        return self.plan

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None: ...


class Stranger(Planned):
    def schedule(self, throttle_prefills: bool = False, more: int = 0) -> Any:
        return self.plan


def test_a_scheduler_that_throttles_nothing_is_extended_too(site: Site) -> None:
    made = extended(Older)
    engine = made.__new__(made)
    engine.plan, engine._sits = PLAN, site.hand
    assert engine.schedule() is PLAN
    engine.update_from_output(PLAN, None)
    assert site.shown()[0].steps == 1


def test_steps_with_arguments_that_are_not_known_are_left_alone() -> None:
    assert extended(Stranger) is Stranger
