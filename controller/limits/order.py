"""In which order the limits of a tree are written, so that no child ever exceeds its parent.

cgroup v1 refuses a quota above any ancestor's, and an ancestor's below any descendant's
(tg_cfs_schedulable_down in kernel/sched/core.c).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A cgroup's limit and what it is to be; None is none. Both in any unit, but the same."""

    path: str
    old: float | None
    new: float | None


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """First what is lifted, then the cuts, children before parents, then the rest, parents first.

    If the tree obeys the rule before and after, it does so after each step: who has no limit of its
    own breaks none, a cut finds its children cut already, and what is raised, or set where nothing
    was, finds the room it needs above it.
    """
    steps = list(steps)
    lifts = [step for step in steps if step.new is None]
    cuts = [step for step in steps if step.new is not None and step.new < (step.old or 0)]
    rest = [step for step in steps if step not in lifts and step not in cuts]
    return (*lifts, *sorted(cuts, key=_depth, reverse=True), *sorted(rest, key=_depth))


def _depth(step: Step) -> int:
    return len([part for part in step.path.split("/") if part])
