"""Where a group's memory is held: memory.high, and dmem.max for the memory of a GPU.

Both are v2's. cgroup v1 has nothing like memory.high: its hard limit kills, and its soft limit
works only when the whole machine is short.
"""

import os
from typing import Final

from controller.limits.cgroup import CgroupError, Group, read
from controller.limits.change import Change, shown

HIGH: Final = "memory.high"
DMEM: Final = "dmem.max"
NO_LIMIT: Final = "max"

_PAGE: Final = os.sysconf("SC_PAGESIZE")


def read_memory_high(group: Group) -> int | None:
    """The bytes above which the group is slowed down and reclaimed from; None without a limit."""
    file = group.directory / HIGH
    return _bytes(file.name, shown(file, NO_LIMIT))


def memory_high_change(group: Group, limit_bytes: int | None) -> Change:
    """What sets memory.high, to whole pages; None is no limit.

    Raises `CgroupError` if there is no such file, or for less than a page. Before kernel 6.16 (the
    one that takes O_NONBLOCK, commit `memcg: introduce non-blocking limit setting`) the write
    itself reclaims what is above the limit and returns only then: cut in steps, or from a process
    that can wait.
    """
    if group.version == 1:
        raise CgroupError(
            f"cgroup v1 has no memory.high, so '{group.directory}' is not limited: its hard limit"
            " kills, and its soft limit waits for the whole machine to be short"
        )
    file = group.directory / HIGH
    if not file.exists():
        raise CgroupError(f"the memory controller is not enabled for cgroup {group.path!r}")
    return Change(file, _text(limit_bytes))


def dmem_regions(group: Group) -> dict[str, int | None]:
    """The regions of GPU memory that can be limited, and the group's limits in bytes.

    Raises `CgroupError` where the kernel has no dmem (since 6.14, with CONFIG_CGROUP_DMEM) or no
    driver has registered a region: then there is nothing to limit.
    """
    file = group.directory / DMEM
    if group.version == 1 or not file.exists():
        raise CgroupError(
            f"no '{file}': limits of GPU memory need cgroup v2 with the dmem controller enabled"
            " there (kernel 6.14, CONFIG_CGROUP_DMEM)"
        )
    regions = {}
    for line in read(file).split("\n"):
        region, _, limit = line.rpartition(" ")
        if region:
            regions[region] = _bytes(file.name, limit)
    return regions


def dmem_max_change(group: Group, region: str, limit_bytes: int | None) -> Change:
    """What limits the group's memory in `region`, such as drm/0000:03:00.0/vram0; None: no limit.

    Raises `CgroupError` as `dmem_regions` does, and for a region that is not there.
    """
    if region not in dmem_regions(group):
        raise CgroupError(f"'{group.directory / DMEM}' has no region {region!r}")
    return Change(group.directory / DMEM, f"{region} {_text(limit_bytes)}")


def _text(limit_bytes: int | None) -> str:
    if limit_bytes is None:
        return NO_LIMIT
    if limit_bytes < _PAGE:
        raise CgroupError(f"a memory limit is a page ({_PAGE} bytes) or more, not {limit_bytes}")
    return str(limit_bytes // _PAGE * _PAGE)


def _bytes(name: str, text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise CgroupError(f"could not understand {name}: {error}") from None
