"""vLLM's waiting queue, in the order of relegation while a deadline is set.

The requests stay in vLLM's own queue, in order of arrival. Whose turn it is is brought to its front
when vLLM looks there; so without a deadline, and if anything here fails, it is the queue that vLLM
made.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from controller.plugins.relegation import Relegation, Rules

QUEUE_METHODS: Final = (
    "add_request",
    "peek_request",
    "pop_request",
    "remove_request",
    "remove_requests",
)
"""What vLLM's own code asks of the queue, beside what any deque has."""

Arrival = Callable[[Any], tuple[int, int]]
"""Of a request of vLLM's: when it arrived (CLOCK_MONOTONIC, ns), and its tokens to compute."""


class Turns:
    """Who is deferred in one queue, and what is told of that; the queue itself asks it.

    `active` while there is a deadline.
    """

    def __init__(self, arrival: Arrival) -> None:
        self.active = False
        self._arrival = arrival
        self._deferred_before = 0
        self._requests: dict[str, Any] = {}
        self._relegation: Relegation[str] | None = None

    @property
    def deferred(self) -> int:
        """Requests that wait behind those on time."""
        return self._relegation.deferred if self._relegation is not None else 0

    @property
    def deferred_total(self) -> int:
        """Requests that were ever deferred, under this deadline or an earlier one."""
        now = self._relegation.deferred_total if self._relegation is not None else 0
        return self._deferred_before + now

    @property
    def on_time_tokens(self) -> int | None:
        """Prompt tokens of those that are not deferred; None without a deadline."""
        return self._relegation.on_time_tokens if self._relegation is not None else None

    def longest_deferral_ns(self, now_ns: int) -> int:
        """How long ago the first of the deferred arrived, 0 if there is none."""
        return 0 if self._relegation is None else self._relegation.longest_deferral_ns(now_ns)

    def begin(self, queue: Iterable[Any]) -> None:
        """A deadline is set while those in `queue` wait."""
        self._relegation, self.active = Relegation(), True
        for request in queue:
            self.add(request)

    def end(self, queue: Any) -> None:
        """There is no deadline any more: `queue` is in order of arrival again."""
        waiting = list(queue)
        first = [each for each in waiting if each.request_id not in self._requests]
        known = [each for each in waiting if each.request_id in self._requests]
        self._deferred_before = self.deferred_total
        self._relegation, self.active = None, False
        self._requests.clear()
        known.sort(key=lambda each: self._arrival(each)[0])
        queue.clear()
        queue.extend((*first, *known))

    def abandon(self) -> None:
        """Order nothing from here on, in the middle of vLLM's planning too: no request moves."""
        self._relegation, self.active = None, False
        self._requests = {}

    def update(self, now_ns: int, tokens_ahead: int, rules: Rules) -> None:
        """The top of a step."""
        if self._relegation is not None:
            self._relegation.update(now_ns, tokens_ahead, rules)

    def add(self, request: Any) -> None:
        """It came and waits."""
        if self._relegation is not None:
            arrival_ns, tokens = self._arrival(request)
            self._relegation.add(request.request_id, arrival_ns, tokens)
            self._requests[request.request_id] = request

    def take(self, request: Any) -> None:
        """It left by the front."""
        if self._relegation is not None and self._requests.pop(request.request_id, None):
            self._relegation.take(request.request_id)

    def discard(self, request: Any) -> None:
        """It left from anywhere."""
        if self._relegation is not None and self._requests.pop(request.request_id, None):
            self._relegation.discard(request.request_id)

    def before(self, head: Any) -> Any:
        """Whose turn it is when `head` is at the front.

        What vLLM put there itself (preempted, or passed over in this step) goes first, as without
        us: it is not among those that we know.
        """
        if self._relegation is None or head.request_id not in self._requests:
            return head
        first = self._relegation.first()
        return head if first is None else self._requests[first]


def can_take_turns(queue: Any) -> bool:
    """Whether the queue is one of vLLM's that `in_turns` can stand in for; nothing waits yet."""
    known = all(hasattr(queue, name) for name in QUEUE_METHODS)
    return known and isinstance(queue, deque) and not queue


def in_turns(queue: Any, turns: Turns, failed: Callable[[Exception], None]) -> Any:
    """A queue of the type of `queue`, vLLM's own and empty, which asks `turns` for its order.

    It tells `failed`, which has to abandon them, of an exception in them.
    """
    base: Any = type(queue)

    class TurnQueue(base):  # type: ignore[misc]  # vLLM's class is known only where it runs
        """vLLM's queue of first come, first served."""

        def add_request(self, request: Any) -> None:
            super().add_request(request)
            if turns.active:
                try:
                    turns.add(request)
                except Exception as error:
                    failed(error)

        def peek_request(self) -> Any:
            head = super().peek_request()
            if not turns.active:
                return head
            try:
                turn = turns.before(head)
                if turn is not head:
                    self.remove(turn)
                    self.appendleft(turn)
            except Exception as error:
                failed(error)
            return super().peek_request()

        def pop_request(self) -> Any:
            request = super().pop_request()
            if turns.active:
                try:
                    turns.take(request)
                except Exception as error:
                    failed(error)
            return request

        def remove_request(self, request: Any) -> None:
            super().remove_request(request)
            self._gone((request,))

        def remove_requests(self, requests: Iterable[Any]) -> None:
            gone = list(requests)
            super().remove_requests(gone)
            self._gone(gone)

        def _gone(self, requests: Iterable[Any]) -> None:
            if turns.active:
                try:
                    for request in requests:
                        turns.discard(request)
                except Exception as error:
                    failed(error)

    return TurnQueue()
