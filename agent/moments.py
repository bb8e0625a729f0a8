"""What is remembered of each engine once a second, for charts, advice and causes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent.advisor import WINDOW_S, Advisor
from agent.candidates import KEPT_NS, WINDOW_NS, Candidates, candidates
from agent.discovery import Discovery
from agent.history import Moment
from agent.node import HISTOGRAMS, Node
from agent.page.columns import Columns
from agent.state import State
from bpf.histogram import Histogram
from bpf.layout import Counters


@dataclass(frozen=True, slots=True)
class Moments:
    """Takes the moment of every engine, and hands it to all who keep some of it."""

    state: State
    node: Node
    advisor: Advisor
    columns: Columns
    candidates: Candidates
    discovery: Discovery

    def take(self) -> None:
        """Remember now."""
        culprits, roles = self.node.culprits(), self.node.roles()
        rows = self.node.rows
        for engine in self.state.policy.engines:
            counters = self.node.counters(engine.name)
            # only now: a histogram has at least what was counted before it was read
            ttft, gap, wait = self._histograms(engine.name, counters)
            moment = Moment(
                time.monotonic_ns(),
                counters,
                self.state.cause_ns(engine.name),
                ttft,
                gap,
                wait,
                self.state.lost(engine.name),
                self.state.take_peaks(engine.name),
                sum(self.state.ends(engine.name).values()),
                self.state.good(engine.name),
            )
            row = rows.get(engine.name)
            with self.state.lock:
                history = self.state.history(engine.name)
                history.add(moment)
                window = history.window(WINDOW_S)
                self.state.culprits[engine.name].take(
                    moment.at_ns,
                    {(c.cgroup, c.command): (c.wait_ns, c.waits) for c in culprits if c.row == row},
                )
                self.state.threads[engine.name].take(
                    moment.at_ns,
                    {
                        role.name: (
                            role.wait_ns,
                            role.waits,
                            role.wait_other_ns,
                            role.run_ns,
                            role.involuntary,
                        )
                        for role in roles
                        if role.row == row
                    },
                )
            status = self.state.engine_status(engine.name)
            self.advisor.take(engine.name, engine.slo, moment, window, status)
            self.columns.take(engine.name, moment, status)
        self.state.candidates = self._find_candidates()

    def _histograms(self, engine: str, now: Counters) -> Iterator[Histogram]:
        """Its histograms; those into which nothing came since the last moment are as they were."""
        with self.state.lock:
            last = self.state.history(engine).last
        for which, counter in HISTOGRAMS.items():
            if last is not None and getattr(last.counters, counter) == getattr(now, counter):
                kept: Histogram = getattr(last, which)
                yield kept
            else:
                yield self.node.histogram(which, engine)

    def _find_candidates(self) -> list[dict[str, Any]]:
        """Who took the CPU in the last seconds and is no target."""
        now_ns = time.monotonic_ns()
        with self.state.lock:
            names = [engine.name for engine in self.state.policy.engines]
            lately, longer = (
                {name: self.state.culprits[name].window(now_ns - span) for name in names}
                for span in (WINDOW_NS, KEPT_NS)
            )
        taking = {cgroup for taken in longer.values() for cgroup, _ in taken}
        self.candidates.take(now_ns, candidates(lately, self.discovery.named), taking)
        limit = self.state.policy.discovery.limit_found
        self.discovery.also = self.candidates.limitable() if limit else ()
        return self.candidates.answer()
