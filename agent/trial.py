"""One policy on trial: on whom, what it is compared with, and how it goes, for the API."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent.agent_view import ApiError, JsonObject
from agent.canary import Canary, plan_of
from bpf.histogram import Histogram
from controller.canary import Kind, Verdict
from controller.pairs import Pair, Tally, total
from controller.policy_diff import KeyChange, changed_engines
from controller.policy_model import Engine, Mode, Neighbour, Policy

State = Literal["running", "adopted", "rolled_back", "aborted", "lost"]


@dataclass(frozen=True, slots=True)
class Proposed:
    """The policy that is tried, and where it came from."""

    policy: Policy
    text: str
    source: str
    changes: Sequence[KeyChange]


@dataclass(frozen=True, slots=True)
class Arms:
    """What is in force in turns: on the engines that are `tried`, and the mode if that differs."""

    tried: tuple[str, ...]
    old: Policy
    new: Policy
    old_mode: Mode
    new_mode: Mode | None


def arms_of(
    old: Policy,
    proposed: Proposed,
    mode: Mode,
    engine: str | None,
    load: Callable[[str], float],
) -> Arms:
    """Who tries a policy; `ApiError` 409 where that would tell nothing.

    Keys of engines are tried on one of them, the one named or else the one with the least traffic
    (`load`, in requests a second) that has any. What is everybody's is tried on all at once.
    """
    new, changes = proposed.policy, proposed.changes
    if not changes:
        raise ApiError(409, "the policy changes nothing: there is nothing to try")
    if _ways(old) != _ways(new):
        raise ApiError(
            409,
            "the policy has other engines or neighbours, or finds them otherwise, which can't be"
            " tried in turns: apply that first, without a canary",
        )
    if not new.engines:
        raise ApiError(409, "the policy has no engine to try it on")
    new_mode = new.mode if new.mode != old.mode else None
    if "control" not in {mode, new_mode}:
        raise ApiError(
            409, f"in mode {mode} a policy changes nothing for users: there is nothing to try"
        )
    shared = [change.key for change in changes if change.path[0] != "engines"]
    if shared:
        if engine is not None:
            raise ApiError(
                409, f"{shared[0]} is every engine's: it can't be tried on {engine} alone"
            )
        return Arms(tuple(each.name for each in new.engines), old, new, mode, new_mode)
    changed = sorted(changed_engines(old, new))
    if engine is not None and engine not in changed:
        raise ApiError(
            409,
            f"the policy changes nothing for {engine}: there is nothing to try; it changes"
            f" {', '.join(changed)}",
        )
    tried = engine or min(changed, key=lambda name: (not load(name), load(name)))
    theirs = {each.name: each for each in new.engines}
    mixed = tuple(theirs[each.name] if each.name == tried else each for each in old.engines)
    return Arms((tried,), old, replace(old, engines=mixed), mode, None)


class Trial:
    """A trial under way, or how the last one ended."""

    def __init__(
        self,
        proposed: Proposed,
        arms: Arms,
        seconds: float,
        gaps: Callable[[str], Histogram],
    ) -> None:
        """It begins now; `gaps` is an engine's histogram of gaps so far."""
        self.proposed = proposed
        self.arms = arms
        self.plan = plan_of(seconds)
        self.state: State = "running"
        self.reason = ""
        self._began_s = time.monotonic()
        self._took_s: float | None = None
        coin = random.Random()
        slos = {engine.name: engine.slo for engine in arms.old.engines}
        self.canary = Canary(
            self.plan, arms.tried, slos, gaps, lambda: coin.random() < 0.5, time.monotonic_ns()
        )

    @property
    def elapsed_s(self) -> float:
        """For how long it has been going on, or did."""
        return time.monotonic() - self._began_s if self._took_s is None else self._took_s

    def end(self, state: State, reason: str) -> None:
        """It is over."""
        self.state, self.reason, self._took_s = state, reason, self.elapsed_s

    def status(self) -> JsonObject:
        """How it stands, for JSON."""
        running = self.state == "running"
        return {
            "state": self.state,
            "source": self.proposed.source,
            "engines": list(self.arms.tried),
            "changes": [change.as_dict() for change in self.proposed.changes],
            "elapsed_s": self.elapsed_s,
            "planned_s": self.plan.planned_s,
            "longest_s": self.plan.longest_s,
            "turn": ("new" if self.canary.is_new else "old") if running else None,
            "reason": self.canary.verdict.reason if running else self.reason,
            "figures": self.figures(),
        }

    def figures(self) -> JsonObject:
        """What was seen of each engine under each policy, up to the last pair of slices."""
        return {name: _figures(pairs) for name, pairs in self.canary.pairs.items()}


def state_of(verdict: Verdict) -> State:
    """How a trial with this verdict ends."""
    return "adopted" if verdict.kind.is_good else "rolled_back"


def reason_of(verdict: Verdict) -> str:
    """The verdict in one line."""
    why = "too little traffic to tell" if verdict.kind is Kind.TOO_LITTLE else str(verdict.kind)
    return f"{why}: {verdict.reason}"


def _figures(pairs: Sequence[Pair]) -> JsonObject:
    whole = total(pairs)
    return {"pairs": len(pairs), "old": _arm(whole.old), "new": _arm(whole.new)}


def _arm(tally: Tally) -> Mapping[str, Any]:
    streams = tally.streams
    return {
        "streams": streams,
        "bad_share": tally.bad / streams if streams else None,
        "error_share": tally.errors / streams if streams else None,
        "ttft_p95_ms": _ms(tally.ttft.quantile_ns(0.95)),
        "gap_p95_ms": _ms(tally.gap.quantile_ns(0.95)),
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6


def _ways(policy: Policy) -> list[tuple[str, object]]:
    """Whom the policy watches, and how each is found."""
    targets: list[Engine | Neighbour] = [*policy.engines, *policy.neighbours]
    return sorted(((each.name, each.match) for each in targets), key=lambda way: way[0])
