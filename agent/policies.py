"""The policy in force, and how it changes while the agent runs: whole or not at all."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agent.api import ApiError, JsonObject
from agent.main_thread import BusyError, MainThread
from agent.policy_file import replace_policy
from controller.plain import plain
from controller.policy import PolicyError, parse_policy, policy_text
from controller.policy_diff import KeyChange, policy_changes
from controller.policy_model import Mode, Policy
from controller.policy_text import key_lines, line_of

JOURNALLED: Final = 50
"""Changed keys that an event names; of more it says how many."""

Enforce = Callable[[Policy, Mode | None, Collection[str]], None]
"""Puts a policy in force, and a mode if one is given; the engines named start afresh."""

Note = Callable[[str, str, Mapping[str, Any]], None]
"""Writes an event to the journal: its kind, its subject and details."""

_LOG: Final = logging.getLogger("sits.policies")


class Policies:
    """What the admin API asks about the policy, from any thread; the work is the main thread's.

    `policy` is the one in force, `source` where it came from, `in_file` whether the agent's own
    file says it. What can't be done raises `ApiError` and changes nothing: 422 for a policy that
    does not hold, 409 for one that can't come into force now, 503 for an agent that is busy.
    """

    def __init__(
        self, policy: Policy, file: Path, main: MainThread, enforce: Enforce, note: Note
    ) -> None:
        """`file` is what the agent was started with; `enforce` and `note` are for its thread."""
        self.policy = policy
        self.file = file.absolute()
        self.source = str(self.file)
        self.in_file = True
        self._main = main
        self._enforce = enforce
        self._note = note

    def diff(self, text: str, source: str) -> JsonObject:
        """What the policy in `text` would change."""
        changes = policy_changes(self.policy, _parse(text, source))
        return {"source": source, "changes": [change.as_dict() for change in changes]}

    def apply(self, text: str, source: str, temporary: bool) -> JsonObject:
        """Put the policy in `text` in force, and in the agent's file if it is to stay."""
        policy = _parse(text, source)
        return self._call(lambda: self._apply(policy, text, source, temporary))

    def reload(self) -> JsonObject:
        """Put the policy in force that the agent's file says now."""
        try:
            text = policy_text(self.file)
        except PolicyError as error:
            raise ApiError(422, str(error)) from None
        policy = _parse(text, str(self.file))
        return self._call(lambda: self._reload(policy, text))

    def reload_here(self) -> str:
        """As `reload`, in the main thread; why it was refused, or nothing."""
        try:
            text = policy_text(self.file)
            self._reload(_parse(text, str(self.file)), text)
        except (ApiError, PolicyError) as error:
            _LOG.error("the policy was not read again: %s", plain(str(error)))
            self._note("policy", str(self.file), {"refused": str(error)})
            return f"the policy file was not read again: {error}"
        return ""

    def _call(self, job: Callable[[], JsonObject]) -> JsonObject:
        try:
            return self._main.call(job)
        except BusyError as error:
            raise ApiError(503, str(error)) from None

    def _apply(self, policy: Policy, text: str, source: str, temporary: bool) -> JsonObject:
        changes = self._live_changes(policy, text, source)
        previous = None if temporary else self._save(text)
        self._put_in_force(policy, source if temporary else str(self.file), "apply", changes)
        self.in_file = not temporary
        return self._answer(source, changes, previous)

    def _reload(self, policy: Policy, text: str) -> JsonObject:
        source = str(self.file)
        changes = self._live_changes(policy, text, source)
        self._put_in_force(policy, source, "reload", changes)
        self.in_file = True
        return self._answer(source, changes, None)

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

    def _save(self, text: str) -> Path | None:
        try:
            return replace_policy(self.file, text)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ApiError(
                409,
                f"could not write '{self.file}': {why}; nothing was changed (--temporary changes"
                " the policy until the agent ends, and no file)",
            ) from None

    def _put_in_force(
        self, policy: Policy, source: str, how: str, changes: Sequence[KeyChange]
    ) -> None:
        old, self.policy, self.source = self.policy, policy, source
        mode = policy.mode if policy.mode != old.mode else None
        if changes:
            self._enforce(policy, mode, ())
        shown = [str(change) for change in changes[:JOURNALLED]]
        more = {"more": len(changes) - JOURNALLED} if len(changes) > JOURNALLED else {}
        self._note("policy", source, {"by": how, "changed": shown, **more})
        _LOG.info("policy of %s in force, %d keys changed", plain(source), len(changes))


def _parse(text: str, source: str) -> Policy:
    try:
        return parse_policy(text, source)
    except PolicyError as error:
        raise ApiError(422, str(error)) from None


def _where(source: str, line: int | None) -> str:
    return source if line is None else f"{source}:{line}"
