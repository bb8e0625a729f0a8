from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.triton_figures import (
    MOST_STEPS,
    Counted,
    Metrics,
    Statistics,
    count,
    metrics,
    statistics,
)

METRICS = """\
# HELP nv_inference_request_success Number of successful inference requests
nv_inference_request_success{model="batcher",version="1"} 180
nv_inference_request_success{model="batcher",version="2"} 20
nv_inference_request_success{model="batcher2",version="1"} 7
nv_inference_request_failure{model="batcher",reason="REJECTED",version="1"} 3
nv_inference_request_failure{model="batcher",reason="OTHER",version="1"} 1
nv_inference_count{model="batcher",version="1"} 400
nv_inference_pending_request_count{model="batcher",version="1"} 5
nv_inference_request_summary_us{model="batcher",version="1",quantile="0.5"} Nan
nv_pinned_memory_pool_used_bytes 0
"""


def stats(requests: int, **batches: tuple[int, int]) -> Statistics:
    sizes = {int(size[1:]): each for size, each in batches.items()}
    items = sum(size * runs for size, (runs, _) in sizes.items())
    return Statistics(requests, items, sizes)


def test_statistics_of_all_versions_are_one() -> None:
    def of(version: str, runs: str, ns: str) -> dict[str, Any]:
        parts = {f"compute_{part}": {"count": runs, "ns": ns} for part in ("input", "infer")}
        return {
            "version": version,
            "inference_count": "8",
            "inference_stats": {"success": {"count": "4"}, "fail": {"count": "1"}},
            "batch_stats": [{"batch_size": "2", **parts}],
        }

    found = statistics([of("1", "3", "300"), of("2", "1", "100")])
    assert found == Statistics(10, 16, {2: (4, 800)})


def test_a_model_that_never_ran_has_counted_nothing() -> None:
    assert statistics([{"name": "m", "inference_stats": {"success": {}}}]) == Statistics()


def test_every_batch_is_a_step_with_its_items_as_prompt_tokens() -> None:
    seen = count(Counted(last=stats(4, b2=(1, 9))), stats(12, b2=(3, 29), b4=(1, 50)), 1000)
    assert seen.steps == 3
    assert [(step.prefill_tokens, step.step_ns) for step in seen.fresh] == [
        (2, 10),
        (4, 50),
        (2, 10),
    ]
    assert [step.index for step in seen.fresh] == [1, 2, 3]


def test_a_reload_that_forgets_the_counts_does_not_make_them_fall() -> None:
    before = count(Counted(), stats(100, b1=(100, 500)), 0)
    after = count(before, stats(3, b1=(3, 15)), 1)
    assert (after.requests, after.items, after.steps) == (103, 103, 103)


def test_of_many_batches_the_last_are_kept_and_all_are_counted() -> None:
    seen = count(Counted(), stats(1000, b1=(900, 900), b8=(100, 800)), 0)
    assert seen.steps == 1000
    assert [step.index for step in seen.fresh] == list(range(1001 - MOST_STEPS, 1001))
    assert {step.prefill_tokens for step in seen.fresh} == {1, 8}


@given(st.lists(st.dictionaries(st.integers(1, 8), st.integers(0, 50)), max_size=8))
def test_steps_are_numbered_without_a_gap_whatever_ran(looks: list[dict[int, int]]) -> None:
    counted, ran = Counted(), dict.fromkeys(range(1, 9), 0)
    for look in looks:
        before = counted.steps
        for size, runs in look.items():
            ran[size] += runs
        batches = {size: (runs, runs * size) for size, runs in ran.items()}
        counted = count(counted, Statistics(sum(ran.values()), 0, batches), 0)
        indexes = [step.index for step in counted.fresh]
        assert counted.steps == before + sum(look.values())
        assert indexes == list(range(counted.steps - len(indexes) + 1, counted.steps + 1))


def test_metrics_are_those_of_the_model_over_versions_and_reasons() -> None:
    assert metrics(METRICS, "batcher") == Metrics(finished=204, items=400, pending=5)


def test_metrics_without_the_model_say_nothing() -> None:
    assert metrics(METRICS, "other") is None


@given(st.text())
def test_any_text_is_metrics_of_nothing(text: str) -> None:
    assert metrics(text, "batcher") is None
