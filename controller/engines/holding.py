"""The knobs we hold of one engine: when to renew the lease, and whether they are ours still.

Somebody may change them under our lease, by the engine's own means or in our name: then they are
his (design section 6.6), and the lease is left to run out.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from controller.engines.contract import Knob
from controller.engines.page import EngineNow

RENEW_SHARE: Final = 3
"""A lease is renewed when a third of it is gone."""

FOREIGN_NS: Final = 300_000_000
"""For so long an answer may show a change that the page does not show yet, or the other way."""

MOST_LAPSES: Final = 5
LAPSES_NS: Final = 60_000_000_000
"""Leases that ended early this often in so long do harm: the knobs go to and fro with them."""


class Holding:
    """What we hold; `values` is empty without a lease."""

    def __init__(self) -> None:
        self.values: Mapping[str, float] = {}
        self._asked_ns = 0
        self._lease_ns = 0
        self._lapsed = False
        self._lapses: deque[int] = deque(maxlen=MOST_LAPSES - 1)
        self._confirmed = False
        self._differs_ns: int | None = None

    def hold(self, values: Mapping[str, float]) -> None:
        """From now on these."""
        self.values, self._differs_ns = dict(values), None

    def let_go(self) -> None:
        """From now on none."""
        self.values, self._differs_ns = {}, None
        self._lapsed = self._confirmed = False

    @property
    def is_lease(self) -> bool:
        """Whether the lease is ours for certain: taken, and not known to have run out."""
        return self._confirmed and not self._lapsed

    def asked(self, now_ns: int, lease_ns: int) -> None:
        """A lease was asked for, or its renewal."""
        if self._lapsed:
            self._lapses.append(now_ns)
            self._lapsed = self._confirmed = False
        self._asked_ns, self._lease_ns = now_ns, lease_ns

    def confirmed(self) -> None:
        """The engine answered that the lease is ours."""
        self._confirmed = bool(self.values)

    def is_due(self, now_ns: int) -> bool:
        """Whether to ask again; after a lapse no sooner either, however many there are."""
        return bool(self.values) and now_ns - self._asked_ns >= self._lease_ns // RENEW_SHARE

    def lapse(self) -> bool:
        """The lease ran out; whether that is news."""
        news = bool(self.values) and not self._lapsed
        self._lapsed = news or self._lapsed
        return news

    def lapses_too_often(self, now_ns: int) -> bool:
        """Whether the lease that ran out is one too many, and not to be taken again."""
        enough = self._lapsed and len(self._lapses) == self._lapses.maxlen
        often = enough and now_ns - self._lapses[0] < LAPSES_NS
        if often:
            self._lapses.clear()
        return often

    def is_foreign(self, now_ns: int, difference: str) -> bool:
        """Whether the engine has shown a `difference` for so long that somebody made it."""
        if not difference:
            self._differs_ns = None
        elif self._differs_ns is None:
            self._differs_ns = now_ns
        return self._differs_ns is not None and now_ns - self._differs_ns >= FOREIGN_NS


def difference(
    knobs: Mapping[str, Knob],
    held: Mapping[str, float],
    epoch: int,
    answered: Mapping[str, float],
    now: EngineNow | None,
) -> str:
    """What the engine shows and we did not set, in words; nothing if there is nothing.

    `epoch` is that of our last `set`, `answered` are the values it was answered with (none while
    they are pending). A figure of the page that is 0 is not shown. An engine that drains to a lower
    `max_running` may show as many as still run.
    """
    shown = dict(answered)
    if now is not None and now.epoch > epoch:
        return f"knobs were set under epoch {now.epoch}, and our last is {epoch}"
    if now is not None and now.epoch == epoch:
        paged = {"max_running": now.max_running, "max_batched_tokens": now.max_batched_tokens}
        shown |= {name: float(value) for name, value in paged.items() if value}
    for name, value in shown.items():
        if name not in knobs:
            continue
        ours = held.get(name, knobs[name].start)
        drains = name == "max_running" and now is not None and ours < value <= now.running
        if value != ours and not drains:
            return f"{name} is {value:g}, and we set {ours:g}"
    return ""
