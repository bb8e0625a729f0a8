"""Which prompts wait or are being computed, and how many tokens of them are left."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple


class Waiting(NamedTuple):
    """A request that has not begun. `arrival_ns` is CLOCK_MONOTONIC."""

    arrival_ns: int
    tokens: int


class _Begun:
    """A prompt of which vLLM has computed `target - left` tokens, or found them in its cache."""

    __slots__ = ("left", "request", "target")

    def __init__(self, request: Any, target: int) -> None:
        self.request = request
        self.target = target
        self.left = target


Advance = tuple[int, int, int, int]
"""What one step does for prompts: tokens and sequences computed, prompts completed, and tokens that
need not be computed any more, those found in the prefix cache included."""


class Prompts:
    """The accounts. A step costs O(prompts begun), and O(1) when there are none.

    `waiting_tokens` are of those that wait, `begun_tokens` of those begun. `returned` wait for the
    second time, after they were preempted.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[str, Waiting] = OrderedDict()
        self.begun: dict[str, _Begun] = {}
        self.returned: set[str] = set()
        self.waiting_tokens = 0
        self.begun_tokens = 0

    @property
    def oldest_arrival_ns(self) -> int:
        """When the longest waiting arrived, 0 if none waits."""
        return next(iter(self.waiting.values())).arrival_ns if self.waiting else 0

    def arrive(self, key: str, arrival_ns: int, tokens: int) -> None:
        """A request waits, behind the others."""
        self.leave(key)
        self.waiting[key] = Waiting(arrival_ns, tokens)
        self.waiting_tokens += tokens

    def come_back(self, key: str, arrival_ns: int, tokens: int) -> None:
        """A request that ran was preempted and waits again, before the others."""
        self.arrive(key, arrival_ns, tokens)
        self.waiting.move_to_end(key, last=False)
        self.returned.add(key)

    def begin(self, key: str, request: Any) -> None:
        """It is admitted and waits no more."""
        self.returned.discard(key)
        waited = self.waiting.pop(key, None)
        if waited is not None:
            self.waiting_tokens -= waited.tokens
            self.begun[key] = _Begun(request, waited.tokens)
            self.begun_tokens += waited.tokens

    def leave(self, key: str) -> None:
        """It ended, or was taken back; nothing if its prompt was done already."""
        self.returned.discard(key)
        waited = self.waiting.pop(key, None)
        if waited is not None:
            self.waiting_tokens -= waited.tokens
        begun = self.begun.pop(key, None)
        if begun is not None:
            self.begun_tokens -= begun.left

    def advance(self, scheduled: Mapping[str, int]) -> Advance:
        """Take in a step that vLLM has made: tokens by request.

        vLLM counts them as computed from there on.
        """
        tokens = sequences = done = 0
        completed = []
        for key, begun in self.begun.items():
            computed = scheduled.get(key, 0)
            if computed:
                sequences += 1
                tokens += computed
            left = begun.target - begun.request.num_computed_tokens
            if left <= 0:
                left = 0
                completed.append(key)
            done += begun.left - left
            begun.left = left
        for key in completed:
            del self.begun[key]
        self.begun_tokens -= done
        return tokens, sequences, len(completed), done
