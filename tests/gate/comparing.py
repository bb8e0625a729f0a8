"""Figures that a machine's noise does not change, held against those that are recorded.

A figure is a count: instructions of a program, those its verifier visited, those a path takes. A
group of them was made with certain tools; with others its figures say nothing about our code, and
are not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Verdict(StrEnum):
    """What a figure is beside the recorded one; the last three fail the gate."""

    SAME = "same"
    LESS = "less"
    SKIPPED = "skipped"
    MORE = "more"
    NOT_RECORDED = "not recorded"
    GONE = "gone"


FAILS: Final = frozenset({Verdict.MORE, Verdict.NOT_RECORDED, Verdict.GONE})


@dataclass(frozen=True, slots=True)
class Group:
    """Figures by name, and what made them: tools and machine, each with its version."""

    made_with: Mapping[str, str]
    figures: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {"made_with": dict(self.made_with), "figures": dict(self.figures)}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: recorded and now, None where there is none."""

    name: str
    recorded: int | None
    now: int | None
    verdict: Verdict

    @property
    def ratio(self) -> float | None:
        """Now to recorded."""
        return self.now / self.recorded if self.now is not None and self.recorded else None


def group_of(fields: Mapping[str, Any]) -> Group:
    """What `Group.as_dict` made."""
    return Group(dict(fields["made_with"]), dict(fields["figures"]))


def differences(recorded: Group, now: Group) -> list[str]:
    """What the two were not both made with, a line each."""
    names = recorded.made_with.keys() | now.made_with.keys()
    return [
        f"{name}: recorded with {recorded.made_with.get(name, 'none')},"
        f" here {now.made_with.get(name, 'none')}"
        for name in sorted(names)
        if recorded.made_with.get(name) != now.made_with.get(name)
    ]


def compare(recorded: Group, now: Group, tolerance: float) -> list[Row]:
    """Every figure of either; one that grew by more than the share `tolerance` is `MORE`."""
    alike = not differences(recorded, now)
    return [
        _row(name, recorded.figures.get(name), now.figures.get(name), tolerance, alike)
        for name in {**recorded.figures, **now.figures}
    ]


def _row(name: str, recorded: int | None, now: int | None, tolerance: float, alike: bool) -> Row:
    if not alike:
        return Row(name, recorded, now, Verdict.SKIPPED)
    if recorded is None:
        return Row(name, recorded, now, Verdict.NOT_RECORDED)
    if now is None:
        return Row(name, recorded, now, Verdict.GONE)
    if now > recorded * (1 + tolerance):
        return Row(name, recorded, now, Verdict.MORE)
    less = now < recorded * (1 - tolerance)
    return Row(name, recorded, now, Verdict.LESS if less else Verdict.SAME)
