"""The policy in force, and how it changes while the agent runs: whole or not at all."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.agent_view import ApiError, JsonObject
from agent.main_thread import BusyError, MainThread
from agent.policy_file import replace_policy
from agent.policy_metrics import CanaryFigures
from agent.trial import Proposed, State, Trial, arms_of, reason_of, state_of
from bpf.histogram import Histogram
from bpf.layout import Event
from controller.journal import EventRow
from controller.plain import plain
from controller.policy import PolicyError, parse_policy, policy_text
from controller.policy_diff import KeyChange, policy_changes
from controller.policy_model import Mode, Policy
from controller.policy_text import key_lines, line_of

CHANGE: Final = "policy"
CANARY: Final = "policy_canary"
"""The kinds of their events in the journal."""

JOURNALLED: Final = 50
"""Changed keys that an event names; of more it says how many."""

_LOG: Final = logging.getLogger("sits.policies")


@dataclass(frozen=True, slots=True)
class Hands:
    """What policies need of the agent, all for its main thread.

    `enforce` puts a policy in force, and a mode if one is given; the engines named start afresh.
    `note` writes an event to the journal: kind, subject, details. `mode` is the one in force,
    `load` an engine's requests a second, `gaps` its histogram of gaps so far.
    """

    enforce: Callable[[Policy, Mode | None, Collection[str]], None]
    note: Callable[[str, str, Mapping[str, Any]], None]
    mode: Callable[[], Mode]
    load: Callable[[str], float]
    gaps: Callable[[str], Histogram]


class Policies:
    """What the admin API asks about the policy, from any thread; the work is the main thread's.

    `policy` is the one in force (the old one while another is on trial), `source` where it came
    from, `in_file` whether the agent's own file says it. What can't be done raises `ApiError` and
    changes nothing: 422 for a policy that does not hold, 409 for one that can't come into force
    now, 503 for an agent that is busy.
    """

    def __init__(
        self,
        policy: Policy,
        file: Path,
        main: MainThread,
        hands: Hands,
        past: Iterable[EventRow] = (),
    ) -> None:
        """`file` is what the agent was started with, `past` what the journal has, newest first."""
        self.policy = policy
        self.file = file.absolute()
        self.source = str(self.file)
        self.in_file = True
        self.problem = ""
        self.outcomes: Counter[str] = Counter()
        self.trial: Trial | None = None
        self._main = main
        self._hands = hands
        last = next((row.event for row in past if row.event.kind == CANARY), None)
        if last is not None and last.detail.get("state") == "running":
            why = "the agent ended without a word; the policy of its file is in force"
            self._hands.note(CANARY, last.subject, {"state": "lost", "reason": why})

    def status(self) -> JsonObject:
        """Which policy is in force, and the trial under way or the last one of this run."""
        trial = self.trial
        return {
            "source": self.source,
            "file": str(self.file),
            "in_file": self.in_file,
            "canary": None if trial is None else trial.status(),
        }

    def diff(self, text: str, source: str) -> JsonObject:
        """What the policy in `text` would change."""
        changes = policy_changes(self.policy, _parse(text, source))
        return {"source": source, "changes": [change.as_dict() for change in changes]}

    def apply(self, text: str, source: str, temporary: bool) -> JsonObject:
        """Put the policy in `text` in force, and in the agent's file if it is to stay."""
        policy = _parse(text, source)
        return self._call(lambda: self._apply(policy, text, source, temporary))

    def try_out(self, text: str, source: str, seconds: float, engine: str | None) -> JsonObject:
        """Try the policy in `text`: it is adopted, or the old one comes back."""
        policy = _parse(text, source)
        return self._call(lambda: self._try_out(policy, text, source, seconds, engine))

    def abort(self, reason: str) -> JsonObject:
        """End the trial under way with the old policy."""
        return self._call(lambda: self._abort(reason))

    def reload(self) -> JsonObject:
        """Put the policy in force that the agent's file says now."""
        try:
            text = policy_text(self.file)
        except PolicyError as error:
            raise ApiError(422, str(error)) from None
        policy = _parse(text, str(self.file))
        return self._call(lambda: self._reload(policy, text))

    def reload_here(self) -> None:
        """As `reload`, in the main thread; `problem` says why it was refused, if it was."""
        self.problem = ""
        try:
            text = policy_text(self.file)
            self._reload(_parse(text, str(self.file)), text)
        except (ApiError, PolicyError) as error:
            _LOG.error("the policy was not read again: %s", plain(str(error)))
            self._hands.note(CHANGE, str(self.file), {"refused": str(error)})
            self.problem = f"the policy file was not read again: {error}"

    @property
    def running(self) -> Trial | None:
        """The trial under way."""
        trial = self.trial
        return trial if trial is not None and trial.state == "running" else None

    def figures(self) -> CanaryFigures:
        """For the metrics."""
        trial, ended = self.running, dict(self.outcomes)
        if trial is None:
            return CanaryFigures(False, ended)
        return CanaryFigures(True, ended, trial.figures())

    def tick(self, now_ns: int) -> None:
        """Go on with the trial under way; for the main thread, several times a second."""
        trial = self.running
        if trial is None:
            return
        was_new = trial.canary.is_new
        verdict = trial.canary.tick(now_ns)
        if verdict is not None:
            self._end(state_of(verdict), reason_of(verdict))
        elif trial.canary.is_new != was_new:
            self._take_turns(trial)

    def stream(self, engine: str, event: Event) -> None:
        """Take an event of a stream; for the main thread."""
        if (trial := self.running) is not None:
            trial.canary.take(engine, event)

    def controller_died(self) -> None:
        """It may have died of the policy on trial; for the main thread."""
        trial = self.running
        if trial is not None and trial.canary.is_new:
            self._end("rolled_back", "the controller died under it")

    def give_up(self, reason: str) -> None:
        """As `abort`, in the main thread, if there is a trial."""
        if self.running is not None:
            self._end("aborted", reason)

    def _call(self, job: Callable[[], JsonObject]) -> JsonObject:
        try:
            return self._main.call(job)
        except BusyError as error:
            raise ApiError(503, str(error)) from None

    def _apply(self, policy: Policy, text: str, source: str, temporary: bool) -> JsonObject:
        changes = self._live_changes(policy, text, source)
        previous = None
        if not temporary:
            try:
                previous = self._save(text)
            except ApiError as error:
                hint = "--temporary changes the policy until the agent ends, and no file"
                raise ApiError(409, f"{error}; nothing was changed ({hint})") from None
        self._put_in_force(policy, source if temporary else str(self.file), "apply", changes)
        self.in_file = not temporary
        return self._answer(source, changes, previous)

    def _reload(self, policy: Policy, text: str) -> JsonObject:
        source = str(self.file)
        changes = self._live_changes(policy, text, source)
        self._put_in_force(policy, source, "reload", changes)
        self.in_file, self.problem = True, ""
        return self._answer(source, changes, None)

    def _try_out(
        self, policy: Policy, text: str, source: str, seconds: float, engine: str | None
    ) -> JsonObject:
        changes = self._live_changes(policy, text, source)
        proposed = Proposed(policy, text, source, changes)
        arms = arms_of(self.policy, proposed, self._hands.mode(), engine, self._hands.load)
        if self._says(text):
            raise ApiError(
                409,
                f"'{self.file}' says this already, so a restart would put it in force untried: put"
                " the old policy back there, and try the new one from another file",
            )
        self.trial = trial = Trial(proposed, arms, seconds, self._hands.gaps)
        self._note_trial(trial, {"engines": list(arms.tried), **_shown(changes)})
        if trial.canary.is_new:
            self._take_turns(trial)
        return self._answer(source, changes, None) | {"canary": trial.status()}

    def _abort(self, reason: str) -> JsonObject:
        if self.running is None:
            raise ApiError(409, "no policy is on trial")
        self._end("aborted", reason or "an operator wished it")
        return self.status()

    def _take_turns(self, trial: Trial) -> None:
        arms = trial.arms
        policy = arms.new if trial.canary.is_new else arms.old
        mode = arms.new_mode if trial.canary.is_new else arms.old_mode
        self._hands.enforce(policy, mode if arms.new_mode is not None else None, arms.tried)

    def _end(self, state: State, reason: str) -> None:
        """The trial is over: adopt the new policy, or go back to the old one if it isn't there."""
        trial = self.trial
        assert trial is not None
        was_new = trial.canary.is_new
        trial.end(state, reason)
        self.outcomes[state] += 1
        self._note_trial(trial, {"reason": reason, "figures": trial.figures()})
        _LOG.info("canary of %s %s: %s", plain(trial.proposed.source), state, plain(reason))
        if state == "adopted":
            self._adopt(trial.proposed)
        elif was_new:
            arms = trial.arms
            mode = arms.old_mode if arms.new_mode is not None else None
            self._hands.enforce(arms.old, mode, arms.tried)

    def _adopt(self, proposed: Proposed) -> None:
        source = str(self.file)
        try:
            self._save(proposed.text)
            self.in_file = True
        except ApiError as error:
            source, self.in_file = proposed.source, False
            self.problem = f"the policy that was adopted lasts until the agent ends: {error}"
            _LOG.error("%s", plain(self.problem))
        self._put_in_force(proposed.policy, source, "canary", proposed.changes)

    def _note_trial(self, trial: Trial, detail: Mapping[str, Any]) -> None:
        self._hands.note(CANARY, trial.proposed.source, {"state": trial.state, **detail})

    def _answer(
        self, source: str, changes: Sequence[KeyChange], previous: Path | None
    ) -> JsonObject:
        return {
            "source": source,
            "changes": [change.as_dict() for change in changes],
            "file": str(self.file),
            "in_file": self.in_file,
            "previous": None if previous is None else str(previous),
        }

    def _live_changes(self, policy: Policy, text: str, source: str) -> Sequence[KeyChange]:
        """What differs; `ApiError` names every key that can't change now."""
        if (trial := self.running) is not None:
            raise ApiError(
                409,
                f"the policy of {trial.proposed.source} is on trial; `sitsctl policy abort` ends"
                " that",
            )
        changes = policy_changes(self.policy, policy)
        if not all(change.live for change in changes):
            lines = key_lines(text)
            raise ApiError(
                409,
                "\n".join(
                    f"{_where(source, line_of(lines, change.path))}: {change}: needs a restart"
                    for change in changes
                    if not change.live
                )
                + "\nnothing was changed",
            )
        return changes

    def _says(self, text: str) -> bool:
        """Whether the agent's file says so already."""
        try:
            return policy_text(self.file) == text
        except PolicyError:
            return False

    def _save(self, text: str) -> Path | None:
        try:
            return replace_policy(self.file, text)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ApiError(409, f"could not write '{self.file}': {why}") from None

    def _put_in_force(
        self, policy: Policy, source: str, how: str, changes: Sequence[KeyChange]
    ) -> None:
        old, self.policy, self.source = self.policy, policy, source
        mode = policy.mode if policy.mode != old.mode else None
        if changes:
            self._hands.enforce(policy, mode, ())
        self._hands.note(CHANGE, source, {"by": how, **_shown(changes)})
        _LOG.info("policy of %s in force, %d keys changed", plain(source), len(changes))


def _shown(changes: Sequence[KeyChange]) -> Mapping[str, Any]:
    """Changes as an event has them."""
    shown = {"changed": [str(change) for change in changes[:JOURNALLED]]}
    more = len(changes) - JOURNALLED
    return shown | {"more": more} if more > 0 else shown


def _parse(text: str, source: str) -> Policy:
    try:
        return parse_policy(text, source)
    except PolicyError as error:
        raise ApiError(422, str(error)) from None


def _where(source: str, line: int | None) -> str:
    return source if line is None else f"{source}:{line}"
