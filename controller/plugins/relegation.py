"""Relegation: in which order an engine serves the requests that wait to begin.

Each is to have its first token within `Rules.deadline_ns` of its arrival. Those that still can are
served first, in order of arrival. The others are *deferred*: they are served as soon as those on
time leave room, again in order of arrival.

Who is deferred: Moore's rule, in Hodgson's form (J. M. Moore, "An n job, one machine sequencing
algorithm for minimizing the number of late jobs", Management Science 15, 1968). Take the requests
in the order they are due, which is that of their arrival; whenever one would be late, drop the
longest taken so far. No other choice keeps more on time.

Ageing: a deferred request that has waited for half of `Rules.max_deferral_ns` goes before the
others. All such together get a share of the prompt tokens while others are on time, which grows
evenly from nothing to `AGED_SHARE` as the oldest of them comes to the bound: as much as it takes,
as far as there is capacity, so that the bound is kept after a burst and in a lasting overload a
backlog of them can't make everybody late.

Nothing here does IO, reads a clock or locks. Times are nanoseconds of one monotonic clock, lengths
are prompt tokens not yet computed.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

AGED_SHARE: Final = 0.5
"""The most that the aged together get of the prompt tokens while others are on time."""

RATE_CHANGE: Final = 0.1
"""A prefill rate that is off by this share makes a new plan."""

RECONSIDER_NS: Final = 100_000_000
"""How often a new plan is made while someone deferred could be on time after all."""

MAX_GONE: Final = 64
"""Requests no longer here that our lists may hold, beyond as many as wait."""

MAX_DEADLINE_MS: Final = 3_600_000
"""The upper end of the knobs `ttft_deadline_ms` and `max_deferral_ms`."""

MAX_DEFERRAL_MS: Final = 60_000
"""Where the knob `max_deferral_ms` begins."""

MAX_TOKENS_PER_S: Final = 100_000_000
"""The upper end of the knob `prefill_tokens_per_s`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds now.

    `deadline_ns` is from arrival to first token, 0 for first come, first served. `max_deferral_ns`
    is 0 for no bound. `tokens_per_s` is what the engine computes of all prompts together; if that
    is no positive number it counts as unknown, and a request as late once its deadline has passed.
    """

    deadline_ns: int = 0
    max_deferral_ns: int = 0
    tokens_per_s: float = math.nan

    @property
    def known_rate(self) -> float:
        """`tokens_per_s`, infinite if unknown."""
        return self.tokens_per_s if self.tokens_per_s > 0 else math.inf


class _Request(Generic[K]):
    """One that waits. `here` until it is taken or discarded; `judged` once it is in a plan."""

    __slots__ = ("arrival_ns", "counted", "deferred", "here", "judged", "key", "number", "tokens")

    def __init__(self, key: K, arrival_ns: int, tokens: int, number: int) -> None:
        self.key = key
        self.arrival_ns = arrival_ns
        self.tokens = tokens
        self.number = number
        self.here = True
        self.judged = self.deferred = self.counted = False


class _Line(Generic[K]):
    """The requests on time, one after another: Moore's rule, a request at a time.

    The first of them begins at `begin_ns`, even once it has left from the front; the last is done
    `end_ns` later. `latest_begin_ns` is the latest begin with which all are on time; after one left
    from the middle it may be earlier than it need be, never later.
    """

    __slots__ = ("_longest", "end_ns", "latest_begin_ns", "ns_per_token")

    def __init__(self, ns_per_token: float) -> None:
        self.ns_per_token = ns_per_token
        self.end_ns = 0.0
        self.latest_begin_ns = math.inf
        self._longest: list[tuple[int, int, _Request[K]]] = []

    def append(self, request: _Request[K], due_ns: float, begin_ns: float) -> _Request[K] | None:
        """Take one that is due last, in O(log n); returns the one that is dropped, if any is.

        Of several of one length the last is dropped.
        """
        heappush(self._longest, (-request.tokens, -request.number, request))
        self.end_ns += request.tokens * self.ns_per_token
        dropped = None
        if begin_ns + self.end_ns > due_ns:
            dropped = heappop(self._longest)[2]
            while not dropped.here:
                dropped = heappop(self._longest)[2]
            self.leave_out(dropped)
        if dropped is not request:
            self.latest_begin_ns = min(self.latest_begin_ns, due_ns - self.end_ns)
        return dropped

    def leave_out(self, request: _Request[K]) -> None:
        """One of them is not computed after all: those after it are done earlier."""
        self.end_ns -= request.tokens * self.ns_per_token


class Relegation(Generic[K]):
    """The waiting requests of one engine, and whose turn it is.

    `add` and `discard` as requests come and go; at the top of a step `update`, then `first` and
    `take` for each that is admitted. An update costs next to nothing while nobody came or went and
    nothing is due, O(1) while the plan holds, O(log n) for each request that came, O(n log n) for a
    new plan.

    `deferred` counts those deferred now, `deferred_total` those that ever were, each once;
    `on_time_tokens` are of those that wait and are not deferred.
    """

    def __init__(self, aged_share: float = AGED_SHARE) -> None:
        """`aged_share` is above 0 and below 1."""
        self.aged_share = aged_share
        self.deferred = 0
        self.deferred_total = 0
        self.on_time_tokens = 0
        self._waiting: dict[K, _Request[K]] = {}
        self._rules = self.asked = Rules()
        self._rate = math.inf
        self.now_ns = self.ahead = 0
        self._credit = self._ahead_ns_per_token = 0.0
        self._last_number = self._last_arrival_ns = 0
        self.quiet_until_ns = -math.inf
        self._begin_plan(_Line(0.0), [])

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def oldest_arrival_ns(self) -> int:
        """When the longest waiting request arrived, 0 if none waits."""
        heads = (self._on_time_head(), self._deferred_head())
        return min((head.arrival_ns for head in heads if head is not None), default=0)

    def is_aged(self, arrival_ns: int, now_ns: int) -> bool:
        """Whether a request of then, if it is deferred, goes before those on time now."""
        bound_ns = self._rules.max_deferral_ns
        return 0 < bound_ns < 2 * (now_ns - arrival_ns)

    def longest_deferral_ns(self, now_ns: int) -> int:
        """How long ago the first of the deferred arrived, 0 if there is none."""
        head = self._deferred_head()
        return 0 if head is None else max(0, now_ns - head.arrival_ns)

    def fits(self, tokens: int) -> bool:
        """Whether a request that came now would be on time, and nobody be put off for it.

        By what was known at the last update, in O(what came since then). False without a deadline
        or a rate.
        """
        line, deadline_ns = self._line, self._rules.deadline_ns
        if deadline_ns <= 0 or line.ns_per_token <= 0:
            return False
        came = sum(each.tokens for each in self._fresh if each.here)
        begins_in_ns = self._begin_ns() - self.now_ns
        return begins_in_ns + line.end_ns + (came + tokens) * line.ns_per_token <= deadline_ns

    def add(self, key: K, arrival_ns: int, tokens: int) -> None:
        """A request waits; it is judged at the next update. `ValueError` if it waits already."""
        if key in self._waiting:
            raise ValueError(f"request {key!r} waits already")
        self._last_number += 1
        request = _Request(key, arrival_ns, tokens, self._last_number)
        self._waiting[key] = request
        self.quiet_until_ns = -math.inf
        self._on_time.append(request)
        self._fresh.append(request)
        self.on_time_tokens += tokens
        self._unsorted |= arrival_ns < self._last_arrival_ns
        self._last_arrival_ns = max(self._last_arrival_ns, arrival_ns)

    def discard(self, key: K) -> None:
        """A request waits no more and is not served; nothing if it is not here."""
        request = self._waiting.get(key)
        if request is not None:
            if request.judged and not request.deferred:
                self._line.leave_out(request)
            self._forget(request)

    def take(self, key: K) -> bool:
        """A request is admitted; returns whether it has to yield to those on time that come.

        If not, its tokens are among those ahead from now on. One that yields is to be computed,
        where the engine can, after those that don't.
        """
        request = self._waiting[key]
        head = self._on_time_head()
        yields = request.deferred and not self._is_aged(request)
        self.ahead += 0 if yields else request.tokens
        if request.deferred:
            self._credit -= request.tokens if head is not None else 0
        elif request is head and request.judged:
            self._taken += request.tokens
        elif request.judged:
            self._line.leave_out(request)
        self._forget(request)
        return yields

    def first(self, *, yielding: bool = True) -> K | None:
        """Whose turn it is, None if nobody waits; without `yielding` none that has to yield."""
        on_time, deferred = self._on_time_head(), self._deferred_head()
        if deferred is not None:
            aged = self._is_aged(deferred)
            if (aged and self._credit >= 0) or (on_time is None and (aged or yielding)):
                return deferred.key
        return None if on_time is None else on_time.key

    def order(self) -> list[K]:
        """All who wait, in the order they are served if no other comes. O(n log n).

        Of the aged only one is put first: the next has to wait for its share.
        """
        first = self.first()
        rest = sorted(self._waiting.values(), key=lambda r: (r.deferred, r.arrival_ns, r.number))
        return [] if first is None else [first, *(r.key for r in rest if r.key != first)]

    def update(self, now_ns: int, tokens_ahead: int, rules: Rules) -> bool:
        """The time is `now_ns`; admitted prompts that don't yield have `tokens_ahead` to go.

        Returns False if nobody is deferred, or no more, because of it: that is so before
        `quiet_until_ns` while the other two are what they were (`ahead`, `asked`), and to set
        `now_ns` is enough then.
        """
        self.now_ns = now_ns
        if now_ns < self.quiet_until_ns and tokens_ahead == self.ahead and rules is self.asked:
            return False
        self.asked = rules
        computed, self.ahead = self.ahead - tokens_ahead, tokens_ahead
        if self._credit < 0:
            earned = self._share() * max(0, computed)
            self._credit = min(0.0, self._credit + earned) if self.deferred else 0.0
        if self._waiting:
            if self._holds(rules):
                self._go_on()
            else:
                self._plan(rules)
        self.quiet_until_ns = self._next_ns()
        return True

    def _next_ns(self) -> float:
        """Until when an update can change nothing if nobody comes or goes: see `_holds`."""
        if self._credit < 0 or self._unsorted:
            return -math.inf
        until_ns = self._line.latest_begin_ns - (self._begin_ns() - self.now_ns)
        head = self._deferred_head()
        if head is None:
            return until_ns
        if self._is_aged(head) != self._aged:
            return -math.inf  # it is the first only since this update
        if self._hope_ns >= self.now_ns:
            until_ns = min(until_ns, self._reconsider_ns)
        if not self._aged and self._rules.max_deferral_ns > 0:
            until_ns = min(until_ns, head.arrival_ns + self._rules.max_deferral_ns / 2)
        return until_ns

    def _holds(self, rules: Rules) -> bool:
        """Whether the plan is still good."""
        old, head = self._rules, self._deferred_head()
        if rules is not old and (
            rules.deadline_ns != old.deadline_ns
            or rules.max_deferral_ns != old.max_deferral_ns
            or not _near(rules.known_rate, self._rate)
        ):
            return False
        if self._unsorted or self._gone > MAX_GONE + len(self._waiting):
            return False
        if self._begin_ns() > self._line.latest_begin_ns:
            return False
        if head is None:
            return True
        settled = self.now_ns < self._reconsider_ns or self.now_ns > self._hope_ns
        return settled and self._is_aged(head) == self._aged

    def _begin_ns(self) -> float:
        """When the line begins, its first ones that were admitted since counted as still in it."""
        ahead_ns = self.ahead * self._ahead_ns_per_token
        return self.now_ns + ahead_ns - self._taken * self._line.ns_per_token

    def _go_on(self) -> None:
        """Judge those that came since; they are due after all others."""
        if self._fresh:
            begin_ns = self._begin_ns()
            for request in self._fresh:
                if request.here:
                    request.judged = True
                    dropped = self._line.append(request, self._due_ns(request), begin_ns)
                    if dropped is not None:
                        self._defer(dropped)
            self._fresh.clear()

    def _plan(self, rules: Rules) -> None:
        """Judge everybody anew.

        Those that were deferred stay so, unless more would be on time otherwise: nobody is put off
        for another's sake and back again.
        """
        self._rules = rules
        head = self._deferred_head()
        self._aged = head is not None and self._is_aged(head)
        self._rate = rules.known_rate
        self._ahead_ns_per_token = 1e9 / self._rate
        # the aged come between those on time; what is ahead has them in it already
        ns_per_token = self._ahead_ns_per_token / (1 - self._share())
        requests = sorted(self._waiting.values(), key=lambda r: (r.arrival_ns, r.number))
        line, on_time = self._drawn([r for r in requests if not r.deferred], ns_per_token)
        if self.deferred:
            other, of_all = self._drawn(requests, ns_per_token)
            if len(of_all) > len(on_time):
                line, on_time = other, of_all
        self._begin_plan(line, on_time)

    def _drawn(
        self, requests: list[_Request[K]], ns_per_token: float
    ) -> tuple[_Line[K], list[_Request[K]]]:
        """The line made of `requests`, and those of them that are in it."""
        line: _Line[K] = _Line(ns_per_token)
        begin_ns = self.now_ns + self.ahead * self._ahead_ns_per_token
        dropped = {line.append(each, self._due_ns(each), begin_ns) for each in requests}
        return line, [each for each in requests if each not in dropped]

    def _begin_plan(self, line: _Line[K], on_time: list[_Request[K]]) -> None:
        self._line = line
        self._on_time = deque(on_time)
        self._fresh: list[_Request[K]] = []
        self._late: list[tuple[int, int, _Request[K]]] = []
        self._taken = self._gone = self.deferred = 0
        self._unsorted = False
        self._hope_ns = -math.inf
        self._reconsider_ns = self.now_ns + RECONSIDER_NS
        self.on_time_tokens = sum(each.tokens for each in self._waiting.values())
        kept = set(on_time)
        for each in self._waiting.values():
            each.judged, each.deferred = True, False
            if each not in kept:
                self._defer(each)

    def _defer(self, request: _Request[K]) -> None:
        request.deferred = True
        self.deferred += 1
        self.deferred_total += not request.counted
        request.counted = True
        self.on_time_tokens -= request.tokens
        heappush(self._late, (request.arrival_ns, request.number, request))
        alone_ns = request.tokens * self._line.ns_per_token
        self._hope_ns = max(self._hope_ns, self._due_ns(request) - alone_ns)

    def _forget(self, request: _Request[K]) -> None:
        del self._waiting[request.key]
        self.quiet_until_ns = -math.inf
        request.here = False
        self._gone += 1
        if request.deferred:
            self.deferred -= 1
        else:
            self.on_time_tokens -= request.tokens

    def _on_time_head(self) -> _Request[K] | None:
        line = self._on_time
        while line and (line[0].deferred or not line[0].here):
            line.popleft()
        return line[0] if line else None

    def _deferred_head(self) -> _Request[K] | None:
        late = self._late
        while late and not late[0][2].here:
            heappop(late)
        return late[0][2] if late else None

    def _due_ns(self, request: _Request[K]) -> float:
        deadline_ns = self._rules.deadline_ns
        return request.arrival_ns + deadline_ns if deadline_ns > 0 else math.inf

    def _is_aged(self, request: _Request[K]) -> bool:
        return self.is_aged(request.arrival_ns, self.now_ns)

    def _share(self) -> float:
        """Of the prompt tokens, what the aged get by the age of the first of them."""
        head = self._deferred_head()
        if head is None or not self._is_aged(head):
            return 0.0
        waited = (self.now_ns - head.arrival_ns) / self._rules.max_deferral_ns
        return self.aged_share * min(1.0, 2 * waited - 1)


def _near(rate: float, planned: float) -> bool:
    return rate == planned or abs(rate - planned) <= RATE_CHANGE * planned < math.inf
