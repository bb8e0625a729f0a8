"""CPU weight, quota and throttling of a cgroup, in the same units for cgroup v1 and v2.

Weight is v2's (1–10000, default 100), and 0 for a group that is idle (cpu.idle, kernels from 5.15):
it runs when nothing beside it wants to. Quota is in cores, None for no limit. A `Change` is the
text a file is to hold: making one reads at most, `apply` writes it and reads it back.
"""

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.limits.cgroup import CgroupError, Group, Version, read, write
from controller.limits.change import IDLE, IDLE_FILE, Change, is_idle, shown

MIN_WEIGHT: Final = 1
MAX_WEIGHT: Final = 10_000
DEFAULT_WEIGHT: Final = 100
IDLE_WEIGHT: Final = 0

WEIGHT_FILES: Final = {1: "cpu.shares", 2: "cpu.weight"}
QUOTA_FILES: Final = {1: "cpu.cfs_quota_us", 2: "cpu.max"}

MIN_QUOTA_US: Final = 1_000
"""The kernel's own lower bound (min_cfs_quota_period in kernel/sched/core.c)."""

_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
_DEFAULT_SHARES: Final = 1_024
_WOKEN: Final = {
    WEIGHT_FILES[1]: str(_DEFAULT_SHARES),
    WEIGHT_FILES[2]: str(DEFAULT_WEIGHT),
}
"""What the weight files hold once a group is idle no more, whatever they held before."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """What a group's own quota has cost it since it was made: only grows.

    `throttled_ns` adds up over CPUs, so it can grow faster than the clock.
    """

    periods: int
    throttled_periods: int
    throttled_ns: int


def shares_of(weight: int) -> int:
    """v1 shares for a v2 weight: ×1024/100 to the nearest, as the kernel maps weight itself."""
    shares = (weight * _DEFAULT_SHARES + DEFAULT_WEIGHT // 2) // DEFAULT_WEIGHT
    return min(max(shares, _MIN_SHARES), _MAX_SHARES)


def weight_of(shares: int) -> int:
    """The v2 weight nearest to v1 `shares`, within 1–10000; undoes `shares_of` exactly."""
    weight = (shares * DEFAULT_WEIGHT + _DEFAULT_SHARES // 2) // _DEFAULT_SHARES
    return min(max(weight, MIN_WEIGHT), MAX_WEIGHT)


def quota_text(version: Version, cores: float | None, period_us: int) -> str:
    """The quota file's text for `cores`; `CgroupError` if the kernel would not take that."""
    if cores is None:
        return "-1" if version == 1 else f"max {period_us}"
    if not math.isfinite(cores) or cores <= 0:
        raise CgroupError(f"a quota is a number of cores above 0, or none, not {cores!r}")
    quota_us = round(cores * period_us)
    if quota_us < MIN_QUOTA_US:
        raise CgroupError(
            f"a quota of {cores:g} cores is {quota_us} µs each {period_us} µs, and the kernel takes"
            f" no less than {MIN_QUOTA_US} µs ({MIN_QUOTA_US / period_us:g} cores)"
        )
    return f"{quota_us}" if version == 1 else f"{quota_us} {period_us}"


def parse_max(text: str) -> tuple[int | None, int]:
    """v2's cpu.max as (quota µs or None, period µs); `ValueError` if it is not that."""
    quota, period = text.split()
    return None if quota == "max" else int(quota), int(period)


def parse_throttling(version: Version, text: str) -> Throttling:
    """Throttling from a cpu.stat file's text; `ValueError` if the figures are not in it."""
    figures = dict(line.split(" ", 1) for line in text.split("\n") if " " in line)
    try:
        return Throttling(
            periods=int(figures["nr_periods"]),
            throttled_periods=int(figures["nr_throttled"]),
            throttled_ns=int(figures["throttled_time"])
            if version == 1
            else int(figures["throttled_usec"]) * 1_000,
        )
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from None


def read_weight(group: Group) -> int:
    """The group's weight, 1–10000, or 0 if it is idle."""
    file = group.directory / WEIGHT_FILES[group.version]
    text = shown(file, IDLE)
    try:
        value = int(text)
    except ValueError as error:
        raise _not_understood(file, error) from None
    return weight_of(value) if group.version == 1 and text != IDLE else value


def read_quota(group: Group) -> float | None:
    """The group's own quota in cores, None without one. A parent's may be tighter."""
    quota_us, period_us = _quota(group.directory, group.version)
    return None if quota_us is None else quota_us / period_us


def read_throttling(group: Group) -> Throttling:
    """How often and how long the group's own quota stopped it."""
    file = group.directory / "cpu.stat"
    try:
        return parse_throttling(group.version, read(file))
    except ValueError as error:
        raise _not_understood(file, error) from None


def weight_change(group: Group, weight: int) -> Change:
    """What sets the group's weight; `CgroupError` if `weight` is neither 1–10000 nor 0: idle."""
    file = group.directory / WEIGHT_FILES[group.version]
    if weight == IDLE_WEIGHT:
        return Change(file, IDLE)
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise CgroupError(
            f"a weight is {MIN_WEIGHT} to {MAX_WEIGHT}, or {IDLE_WEIGHT} for idle, not {weight}"
        )
    return Change(file, str(shares_of(weight) if group.version == 1 else weight))


def can_be_idle(group: Group) -> bool:
    """Whether this kernel can make the group idle."""
    return (group.directory / IDLE_FILE).exists()


def quota_change(group: Group, cores: float | None) -> Change:
    """What sets the group's quota to `cores` in the period it has now."""
    _, period_us = _quota(group.directory, group.version)
    return Change(
        group.directory / QUOTA_FILES[group.version], quota_text(group.version, cores, period_us)
    )


def between(found: str, change: Change) -> tuple[str, ...]:
    """What the file may hold for a moment while it goes from `found` to the change's text or back.

    A group that is idle no more has the default weight until its own is written.
    """
    woken = _WOKEN.get(change.file.name)
    return () if woken is None or IDLE not in (found, change.text) else (woken,)


def write_weight(group: Group, weight: int) -> None:
    """Set the group's weight and read it back."""
    apply(weight_change(group, weight))


def write_quota(group: Group, cores: float | None) -> None:
    """Set the group's quota and read it back."""
    apply(quota_change(group, cores))


def apply(change: Change) -> None:
    """Write a change and read it back.

    Raises `CgroupError` with the kernel's reason, where it can be told, if the write is refused or
    the file then holds something else.
    """
    try:
        _write(change)
    except CgroupError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EINVAL:
            raise CgroupError(f"{error}{_why_invalid(change)}") from cause
        raise
    found = shown(change.file, change.text)
    if found != change.text:
        raise CgroupError(f"'{change.file}' holds {found!r} after {change.text!r} was written")


def _write(change: Change) -> None:
    if change.file.name not in WEIGHT_FILES.values():
        write(change.file, change.text)
        return
    idle_file = change.file.with_name(IDLE_FILE)
    if change.text != IDLE:
        if is_idle(change.file):
            write(idle_file, "0")
        write(change.file, change.text)
    elif idle_file.exists():
        write(idle_file, "1")
    else:
        raise CgroupError(
            f"'{change.file.parent}' cannot be made idle: no {IDLE_FILE}, as before kernel 5.15"
        )


def _quota(directory: Path, version: Version) -> tuple[int | None, int]:
    file = directory / QUOTA_FILES[version]
    try:
        if version == 2:
            return parse_max(read(file))
        quota_us = int(read(file))
        return None if quota_us < 0 else quota_us, int(read(directory / "cpu.cfs_period_us"))
    except ValueError as error:
        raise _not_understood(file, error) from None


def _not_understood(file: Path, error: ValueError) -> CgroupError:
    return CgroupError(f"could not understand '{file}': {error}")


def _why_invalid(change: Change) -> str:
    """The kernel says no more than EINVAL; these are the causes that can be looked up."""
    directory, name = change.file.parent, change.file.name
    if name == QUOTA_FILES[2]:
        burst, quota_us = directory / "cpu.max.burst", parse_max(change.text)[0]
    elif name == QUOTA_FILES[1]:
        burst, quota_us = directory / "cpu.cfs_burst_us", int(change.text)
    else:
        return ""
    if quota_us is None or quota_us < 0:
        return ""
    if burst.exists() and (text := read(burst)).isdecimal() and int(text) > quota_us:
        return f" ('{burst}' holds {read(burst)}, and a quota cannot be below it)"
    return _against_v1_tree(directory, quota_us) if name == QUOTA_FILES[1] else ""


def _against_v1_tree(directory: Path, quota_us: int) -> str:
    cores = quota_us / _quota(directory, 1)[1]
    for parent in directory.parents:
        if not (parent / QUOTA_FILES[1]).exists():
            break
        limit = _cores(parent)
        if limit is not None and limit < cores:
            return (
                f" (cgroup v1 allows a child no more than its parent, and '{parent}'"
                f" has {limit:g} cores, not {cores:g})"
            )
    for below, _, _ in os.walk(directory):
        limit = _cores(Path(below)) if Path(below) != directory else None
        if limit is not None and limit > cores:
            return (
                f" (cgroup v1 allows a child no more than its parent, and '{below}' below it"
                f" has {limit:g} cores: lower that first)"
            )
    return ""


def _cores(directory: Path) -> float | None:
    quota_us, period_us = _quota(directory, 1)
    return None if quota_us is None else quota_us / period_us
