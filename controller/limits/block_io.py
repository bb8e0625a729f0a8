"""A group's share of the disks, as v2's weight of 1–10000 with 100 the default.

The file depends on what shares out the disks: io.weight for blk-iocost, io.bfq.weight (v1:
blkio.bfq.weight) for the BFQ scheduler, blkio.weight for CFQ, which is in kernels before 5.0. Only
the default of all disks is set; what somebody set for one disk stays.
"""

from typing import Final

from controller.limits.cgroup import CgroupError, Group
from controller.limits.change import Change, shown
from controller.limits.cpu import DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT

_BFQ_MAX: Final = 1_000
_CFQ_MIN, _CFQ_DEFAULT, _CFQ_MAX = 10, 500, 1_000


def bfq_weight(weight: int) -> int:
    """BFQ's weight (1–1000, default 100) for v2's: the same below 100, then evenly to its end."""
    if weight <= DEFAULT_WEIGHT:
        return weight
    above = (weight - DEFAULT_WEIGHT) * (_BFQ_MAX - DEFAULT_WEIGHT)
    return DEFAULT_WEIGHT + above // (MAX_WEIGHT - DEFAULT_WEIGHT)


def cfq_weight(weight: int) -> int:
    """CFQ's weight (10–1000, default 500) for v2's: in proportion, as far as it goes."""
    return min(max(weight * _CFQ_DEFAULT // DEFAULT_WEIGHT, _CFQ_MIN), _CFQ_MAX)


def io_weight_change(group: Group, weight: int) -> Change:
    """What sets the group's weight; `CgroupError` if it is not 1–10000 or nothing there has one."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise CgroupError(f"a weight is {MIN_WEIGHT} to {MAX_WEIGHT}, not {weight}")
    texts = (
        {"io.weight": f"default {weight}", "io.bfq.weight": f"default {bfq_weight(weight)}"}
        if group.version == 2
        else {"blkio.bfq.weight": f"{bfq_weight(weight)}", "blkio.weight": f"{cfq_weight(weight)}"}
    )
    for name, text in texts.items():
        if (group.directory / name).exists():
            return Change(group.directory / name, text)
    raise CgroupError(
        f"'{group.directory}' has no disk weight: none of {', '.join(texts)} is there (the io"
        " controller is not enabled, or no disk is shared out by weight)"
    )


def read_io_weight(group: Group) -> int:
    """The weight in force, in the file's own units."""
    file = io_weight_change(group, DEFAULT_WEIGHT).file
    text = shown(file, "default")
    try:
        return int(text.rpartition(" ")[2])
    except ValueError as error:
        raise CgroupError(f"could not understand '{file}': {error}") from None
