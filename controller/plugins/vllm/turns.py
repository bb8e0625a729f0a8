"""vLLM's waiting queue, in the order of relegation while a deadline is set.

The requests stay in vLLM's own queue, in order of arrival. Whose turn it is is brought to its front
when vLLM looks there; so without a deadline, and if anything here fails, it is the queue that vLLM
made.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from controller.plugins.relegation import Relegation

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

    `active` while there is a deadline; `order` is to be updated at the top of each step then.
    """

    def __init__(self, arrival: Arrival) -> None:
        self.active = False
        self._arrival = arrival
        self._deferred_before = 0
        self._requests: dict[str, Any] = {}
        self.order: Relegation[str] | None = None

    def told(self, now_ns: int) -> tuple[int, int, int, int | None]:
        """What the page shows.

        Requests deferred now; those that ever were, under this deadline or an earlier one; how long
        ago the first of those deferred now arrived; prompt tokens of those that are not deferred,
        None without a deadline.
        """
        turns = self.order
        if turns is None:
            return 0, self._deferred_before, 0, None
        longest_ns = turns.longest_deferral_ns(now_ns) if turns.deferred else 0
        total = self._deferred_before + turns.deferred_total
        return turns.deferred, total, longest_ns, turns.on_time_tokens

    def begin(self, queue: Iterable[Any]) -> None:
        """A deadline is set while those in `queue` wait."""
        self.order, self.active = Relegation(), True
        for request in queue:
            self.add(request)

    def end(self, queue: Any) -> None:
        """There is no deadline any more: `queue` is in order of arrival again."""
        waiting = list(queue)
        first = [each for each in waiting if each.request_id not in self._requests]
        known = [each for each in waiting if each.request_id in self._requests]
        if self.order is not None:
            self._deferred_before += self.order.deferred_total
        self.order, self.active = None, False
        self._requests.clear()
        known.sort(key=lambda each: self._arrival(each)[0])
        queue.clear()
        queue.extend((*first, *known))

    def abandon(self) -> None:
        """Order nothing from here on, in the middle of vLLM's planning too: no request moves."""
        self.order, self.active = None, False
        self._requests = {}

    def add(self, request: Any) -> None:
        """It came and waits."""
        if self.order is not None:
            arrival_ns, tokens = self._arrival(request)
            self.order.add(request.request_id, arrival_ns, tokens)
            self._requests[request.request_id] = request

    def take(self, request: Any) -> None:
        """It left by the front."""
        if self.order is not None and self._requests.pop(request.request_id, None):
            self.order.take(request.request_id)

    def discard(self, request: Any) -> None:
        """It left from anywhere."""
        if self.order is not None and self._requests.pop(request.request_id, None):
            self.order.discard(request.request_id)

    def before(self, head: Any) -> Any:
        """Whose turn it is when `head` is at the front.

        What vLLM put there itself (preempted, or passed over in this step) goes first, as without
        us: it is not among those that we know.
        """
        if self.order is None or head.request_id not in self._requests:
            return head
        first = self.order.first()
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

        # vLLM counts in Python
        __len__ = deque.__len__

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
