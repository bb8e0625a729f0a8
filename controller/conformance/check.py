"""What a check is, and what it can say."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.conformance.probe import Probe


class BreachError(Exception):
    """The engine did not do what the contract says."""

    def __init__(self, expected: str, got: str, sent: str = "") -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.expected = expected
        self.got = got
        self.sent = sent


class NotApplicableError(Exception):
    """The check can't be made on this engine, or by this user; the message says why."""


class Result(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: `run` returns a remark, if it has one, or raises one of the errors above.

    `proves` is the contract's sentence word for word and `section` the anchor it stands under.
    What is `thorough` disturbs an engine that serves.
    """

    name: str
    title: str
    section: str
    proves: str
    run: "Callable[[Probe], str | None]"
    thorough: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As `sitsctl conformance --list --json` prints it."""
        names = ("name", "title", "section", "proves", "thorough")
        return {name: getattr(self, name) for name in names}


def check(
    section: str, proves: str, *, thorough: bool = False
) -> "Callable[[Callable[[Probe], str | None]], Check]":
    """Make a check of a function: its name and docstring are the check's name and title."""

    def made(run: "Callable[[Probe], str | None]") -> Check:
        name = run.__name__.replace("_", "-")
        return Check(
            name,
            (run.__doc__ or "").split("\n")[0].removesuffix("."),
            section,
            proves,
            run,
            thorough,
        )

    return made


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check. `reason` is a remark or why it is not applicable."""

    check: Check
    result: Result
    reason: str = ""
    sent: str = ""
    expected: str = ""
    got: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {
            "name": self.check.name,
            "title": self.check.title,
            "result": str(self.result),
            "reason": self.reason,
            "sent": self.sent,
            "expected": self.expected,
            "got": self.got,
            "section": self.check.section,
            "proves": self.check.proves,
        }
