"""The queue's order. vLLM's own queue class is a deque with these five methods."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from controller.plugins.relegation import Rules
from controller.plugins.vllm.turns import Turns, can_take_turns, in_turns

MS = 1_000_000
RULES = Rules(deadline_ns=1000 * MS, max_deferral_ns=0, tokens_per_s=1000)


class Queue(deque[Any]):
    def add_request(self, request: Any) -> None:
        self.append(request)

    def peek_request(self) -> Any:
        return self[0]

    def pop_request(self) -> Any:
        return self.popleft()

    def remove_request(self, request: Any) -> None:
        self.remove(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        gone = set(map(id, requests))
        kept = [each for each in self if id(each) not in gone]
        self.clear()
        self.extend(kept)


@dataclass(eq=False)
class Request:
    request_id: str
    arrival_ns: int
    tokens: int


def fail(error: Exception) -> None:
    raise error


def arrival(request: Request) -> tuple[int, int]:
    return request.arrival_ns, request.tokens


def served(queue: Any) -> list[str]:
    names = []
    while queue:
        head = queue.peek_request()
        assert queue.pop_request() is head
        names.append(head.request_id)
    return names


def update(turns: Turns, now_ns: int, tokens_ahead: int, rules: Rules) -> None:
    assert turns.order is not None
    turns.order.update(now_ns, tokens_ahead, rules)


def test_without_a_deadline_it_is_the_queue_it_stands_in_for() -> None:
    queue = in_turns(Queue(), Turns(arrival), fail)
    for name in "abc":
        queue.add_request(Request(name, 0, 5000))
    assert served(queue) == ["a", "b", "c"]


def test_who_cannot_be_on_time_comes_after_those_who_can() -> None:
    turns = Turns(arrival)
    queue = in_turns(Queue(), turns, fail)
    turns.begin(queue)
    for request in (Request("late", 0, 5000), Request("a", 1, 100), Request("b", 2, 100)):
        queue.add_request(request)
    update(turns, 3, 0, RULES)
    assert turns.told(3) == (1, 1, 3, 200)
    assert served(queue) == ["a", "b", "late"]
    assert turns.told(3) == (0, 1, 0, 0)


def test_those_who_wait_already_are_judged_when_a_deadline_is_set() -> None:
    turns = Turns(arrival)
    queue = in_turns(Queue(), turns, fail)
    for request in (Request("late", 0, 5000), Request("a", 1, 100)):
        queue.add_request(request)
    turns.begin(queue)
    update(turns, 2, 0, RULES)
    assert served(queue) == ["a", "late"]


def test_what_vllm_puts_to_the_front_stays_there() -> None:
    turns = Turns(arrival)
    queue = in_turns(Queue(), turns, fail)
    turns.begin(queue)
    queue.add_request(Request("a", 1, 100))
    queue.appendleft(Request("preempted", 0, 9000))
    update(turns, 2, 0, RULES)
    assert served(queue) == ["preempted", "a"]


def test_the_order_of_arrival_is_back_when_the_deadline_goes() -> None:
    turns = Turns(arrival)
    queue = in_turns(Queue(), turns, fail)
    turns.begin(queue)
    for request in (Request("late", 0, 5000), Request("a", 1, 100), Request("b", 2, 100)):
        queue.add_request(request)
    update(turns, 3, 0, RULES)
    assert queue.peek_request().request_id == "a"
    turns.end(queue)
    assert served(queue) == ["late", "a", "b"]


def test_one_that_is_taken_back_is_nobodys_turn() -> None:
    turns = Turns(arrival)
    queue = in_turns(Queue(), turns, fail)
    turns.begin(queue)
    requests = [Request("late", 0, 5000), Request("a", 1, 100), Request("b", 2, 100)]
    for request in requests:
        queue.add_request(request)
    update(turns, 3, 0, RULES)
    queue.remove_requests(requests[:2])
    queue.remove_request(requests[2])
    assert (len(queue), turns.told(3)) == (0, (0, 1, 0, 0))


def test_after_an_error_in_the_order_no_request_moves() -> None:
    turns = Turns(arrival)
    errors: list[Exception] = []

    def end(error: Exception) -> None:
        errors.append(error)
        turns.abandon()

    queue = in_turns(Queue(), turns, end)
    turns.begin(queue)
    first = Request("a", 0, 100)
    queue.add_request(first)
    queue.add_request(first)  # one that waits already: no order has it twice
    queue.add_request(Request("b", 1, 100))
    assert [type(error) for error in errors] == [ValueError]
    assert served(queue) == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("queue", "can"),
    [(Queue(), True), (deque(), False), ([], False), (Queue([1]), False)],
    ids=["vLLM's", "a deque without its methods", "a list", "one that holds something"],
)
def test_only_an_empty_queue_of_vllms_is_stood_in_for(queue: Any, can: bool) -> None:
    assert can_take_turns(queue) is can
