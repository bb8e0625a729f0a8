from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from controller.plugins.vllm.prompts import Prompts


@dataclass
class Request:
    num_computed_tokens: int = 0


def test_the_oldest_is_the_first_that_came_and_waits() -> None:
    prompts = Prompts()
    prompts.arrive("a", 10, 5)
    prompts.arrive("b", 20, 7)
    assert (prompts.oldest_arrival_ns, prompts.waiting_tokens) == (10, 12)
    prompts.leave("a")
    assert (prompts.oldest_arrival_ns, prompts.waiting_tokens) == (20, 7)
    prompts.leave("b")
    assert (prompts.oldest_arrival_ns, prompts.waiting_tokens) == (0, 0)


def test_a_preempted_request_is_the_oldest_again() -> None:
    prompts = Prompts()
    prompts.arrive("a", 20, 5)
    prompts.come_back("b", 10, 9)
    assert (prompts.oldest_arrival_ns, prompts.waiting_tokens) == (10, 14)


def test_tokens_found_in_the_prefix_cache_are_done_but_not_computed() -> None:
    prompts = Prompts()
    prompts.arrive("a", 1, 100)
    prompts.begin("a", Request(num_computed_tokens=84))
    assert prompts.advance({"a": 20}) == (20, 1, 0, 84)
    assert prompts.begun_tokens == 16


def test_a_request_that_ends_half_way_leaves_no_tokens() -> None:
    prompts = Prompts()
    prompts.arrive("a", 1, 100)
    prompts.begin("a", Request(num_computed_tokens=40))
    prompts.advance({"a": 40})
    prompts.leave("a")
    assert (prompts.begun_tokens, prompts.begun) == (0, {})


def test_a_begun_prompt_without_tokens_in_a_step_is_none_of_its_sequences() -> None:
    prompts = Prompts()
    prompts.arrive("a", 1, 100)
    prompts.begin("a", Request())
    assert prompts.advance({"b": 1}) == (0, 0, 0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 400)), min_size=1, max_size=20),
    st.integers(1, 128),
)
def test_every_prompt_is_done_once_whatever_was_cached(
    shapes: list[tuple[int, int]], budget: int
) -> None:
    prompts = Prompts()
    requests = {}
    for number, (tokens, cached) in enumerate(shapes):
        key = str(number)
        prompts.arrive(key, number, tokens)
        # vLLM computes at least the last token of a prompt
        requests[key] = Request(min(cached, tokens - 1))
    for key, request in requests.items():
        prompts.begin(key, request)
    steps = []
    while prompts.begun:
        plan = {}
        for key, begun in prompts.begun.items():
            plan[key] = min(budget, begun.target - requests[key].num_computed_tokens)
        for key, computed in plan.items():
            requests[key].num_computed_tokens += computed
        steps.append(prompts.advance(plan))
    computed, _, completed, done = map(sum, zip(*steps, strict=True))
    assert done == sum(tokens for tokens, _ in shapes)
    assert completed == len(shapes)
    assert computed == sum(tokens - min(cached, tokens - 1) for tokens, cached in shapes)
    assert (prompts.begun_tokens, prompts.waiting_tokens) == (0, 0)
