from typing import Any

import pytest

from controller.adapters.triton_config import (
    CONCURRENCY,
    WINDOW,
    knobs,
    largest_batch,
    value,
    with_values,
)

BATCHER: dict[str, Any] = {
    "name": "batcher",
    "max_batch_size": 8,
    "instance_group": [{"name": "batcher_0", "count": 2, "kind": "KIND_CPU"}],
    "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": "2500"},
    "parameters": {"rounds": {"string_value": "12"}},
}
LANES: dict[str, Any] = {
    "name": "lanes",
    "instance_group": [{"name": "lanes_0", "count": 3, "kind": "KIND_CPU"}],
}


def test_a_dynamic_batcher_offers_its_window_as_it_is_in_force_at_the_cost_of_a_reload() -> None:
    (knob,) = knobs(BATCHER).values()
    assert (knob.name, knob.start, knob.maximum, knob.cost) == (WINDOW, 2.5, 200, "reload")


def test_a_window_that_is_longer_than_the_longest_stays_within_its_own_range() -> None:
    slow = BATCHER | {"dynamic_batching": {"max_queue_delay_microseconds": "400000"}}
    assert knobs(slow)[WINDOW].maximum == knobs(slow)[WINDOW].start == 400


def test_a_dynamic_batcher_without_a_delay_has_a_window_of_none() -> None:
    assert value(BATCHER | {"dynamic_batching": {}}, WINDOW) == 0


def test_instances_that_take_one_request_each_are_a_concurrency_that_can_only_be_cut() -> None:
    (knob,) = knobs(LANES).values()
    assert (knob.name, knob.minimum, knob.start, knob.maximum) == (CONCURRENCY, 1, 3, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"sequence_batching": {}},
        {"ensemble_scheduling": {"step": []}},
        {"instance_group": [{"count": 1}]},
        {"instance_group": [{"count": 2}, {"count": 2}]},
        {"instance_group": [{"count": 2, "gpus": [0, 1]}]},
        {"instance_group": []},
        {"max_batch_size": 4},
    ],
)
def test_a_model_of_which_requests_at_once_are_no_number_of_instances_offers_none(
    change: dict[str, Any],
) -> None:
    assert not knobs(LANES | change)


def test_a_sequence_batcher_offers_nothing_because_a_reload_would_end_its_sequences() -> None:
    assert not knobs(BATCHER | {"sequence_batching": {}})


def test_a_configuration_with_a_knob_set_is_complete_and_differs_in_nothing_else() -> None:
    changed = with_values(BATCHER, {WINDOW: 40.0})
    assert value(changed, WINDOW) == 40
    assert with_values(changed, {WINDOW: 2.5}) == BATCHER
    assert BATCHER["dynamic_batching"]["max_queue_delay_microseconds"] == "2500"


def test_a_concurrency_is_a_number_of_instances() -> None:
    changed = with_values(LANES, {CONCURRENCY: 2})
    assert value(changed, CONCURRENCY) == 2
    assert changed["instance_group"][0] == LANES["instance_group"][0] | {"count": 2}


def test_a_model_that_does_not_batch_takes_one_item_at_a_time() -> None:
    assert (largest_batch(BATCHER), largest_batch(LANES)) == (8, 1)
