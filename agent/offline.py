"""What the commands of sitsctl that need no agent have in common: journals, policies, refusals.

What it takes is imported when it is used: no other command is to pay for it.
"""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.cli import USAGE, fail

if TYPE_CHECKING:
    from controller.journal_rows import Recorded
    from controller.policy_model import Policy

_EVERYTHING_NS: Final = -(1 << 63)


def recorded_in(path: Path, engine: str | None, since_ns: int = 0) -> "list[Recorded]":
    """What a journal recorded; ends the command if that is nothing."""
    from controller.journal import JournalError, JournalReader

    try:
        with closing(JournalReader(path)) as reader:
            found = list(reader.recorded(engine, since_ns or _EVERYTHING_NS))
            if not found and engine is not None:
                names = {each.engine for each in reader.recorded()}
                if names and engine not in names:
                    fail(f"journal '{path}' has no engine '{engine}': {listed(names)}", USAGE)
    except JournalError as error:
        fail(str(error), USAGE)
    if not found:
        when = " since then" if since_ns else ""
        fail(f"journal '{path}' has nothing to replay{when}: no inputs were recorded", USAGE)
    return found


def policy_at(path: Path | None) -> "Policy | None":
    """The policy in a file, None without one; ends the command if it does not hold."""
    from controller.policy import PolicyError, load_policy

    if path is None:
        return None
    try:
        return load_policy(path)
    except PolicyError as error:
        fail(str(error), USAGE)


def listed(names: set[str]) -> str:
    """Names, for a refusal that tells what there is."""
    return f"there is {', '.join(sorted(names))}"
