"""Knobs of versions that are not installed here, by the attributes they are told by."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from controller.plugins.vllm.knobs import Limits, Traits, offered, traits_of


class Queue(deque[Any]):
    """vLLM's queue, with the methods that ours overrides."""

    add_request = peek_request = pop_request = remove_request = remove_requests = deque.append


def scheduler(*, running: int = 0, active: int | None = None, **config: Any) -> Any:
    settings = {"long_prefill_token_threshold": 0, "enable_chunked_prefill": True, **config}
    made = SimpleNamespace(
        scheduler_config=SimpleNamespace(**settings),
        cache_config=SimpleNamespace(block_size=16),
        max_num_running_reqs=64,
        max_num_scheduled_tokens=2048,
        running=[object()] * running,
        waiting=Queue(),
        policy=SimpleNamespace(value="fcfs"),
    )
    if active is not None:
        made.max_num_active_reqs = active
    return made


def values(**changed: float) -> dict[str, float]:
    start = {"max_running": 64, "max_batched_tokens": 2048, "long_prefill_tokens": 2048}
    return {**start, **changed}


def limits(made: Any) -> Limits:
    traits = traits_of(made)
    return Limits(made, traits, offered(made, traits))


def test_where_slots_and_admission_are_one_the_cap_follows_the_drain() -> None:
    made = scheduler(running=10)
    moved = limits(made)
    moved.take(values(max_running=4))
    assert made.max_num_running_reqs == 10
    made.running = [object()] * 3
    moved.follow()
    assert made.max_num_running_reqs == 4


def test_where_they_are_two_the_slots_stay_and_the_start_is_the_admission() -> None:
    made = scheduler(running=10, active=32)
    assert offered(made, traits_of(made))["max_running"].start == 32
    limits(made).take(values(max_running=4))
    assert (made.max_num_active_reqs, made.max_num_running_reqs) == (4, 64)


@pytest.mark.parametrize(("spec_tokens", "least"), [(0, 10), (3, 40)])
def test_the_budget_is_never_below_what_the_running_need(spec_tokens: int, least: int) -> None:
    made = scheduler(running=10)
    made.num_spec_tokens = spec_tokens
    limits(made).take(values(max_batched_tokens=5))
    assert made.max_num_scheduled_tokens == least


def test_the_start_value_of_a_long_prompt_is_vllms_own_rule() -> None:
    made = scheduler()
    moved = limits(made)
    moved.take(values(long_prefill_tokens=2047))
    assert made.scheduler_config.long_prefill_token_threshold == 2047
    moved.take(values())
    assert made.scheduler_config.long_prefill_token_threshold == 0


@pytest.mark.parametrize(
    "config",
    [{"enable_chunked_prefill": False}, {"disable_chunked_mm_input": True}],
    ids=["whole prompts", "whole pictures"],
)
def test_no_budget_is_offered_under_which_something_would_never_fit(config: dict[str, Any]) -> None:
    made = scheduler(**config)
    assert set(offered(made, traits_of(made))) >= {"max_running"}
    assert not {"max_batched_tokens", "long_prefill_tokens"} & set(offered(made, traits_of(made)))


def test_what_has_to_be_aligned_is_never_cut_shorter_than_a_block() -> None:
    made = scheduler()
    made.need_mamba_block_aligned_split = True
    knobs = offered(made, traits_of(made))
    assert knobs["max_batched_tokens"].minimum == knobs["long_prefill_tokens"].minimum == 16


def test_a_queue_of_another_kind_is_not_ordered() -> None:
    made = scheduler()
    made.waiting = []
    assert "ttft_deadline_ms" not in offered(made, traits_of(made))


def test_traits_are_told_by_attributes() -> None:
    assert traits_of(scheduler(active=64)) == Traits(
        splits=True, tokens_per_sequence=1, chunks=True, least_chunk=1, relegates=True
    )
