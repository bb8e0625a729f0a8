"""How a group's processes are stopped and let go again: cgroup v2's freezer and v1's.

A write asks for it; the kernel stops each process when it next returns to user space or sleeps, so
that a group is wholly frozen a moment later, or much later if one waits for a disk.
"""

from pathlib import Path
from typing import Final

from controller.limits.cgroup import CgroupError, Group
from controller.limits.change import V1_FREEZER, V1_FROZEN, V1_THAWED, Change

V2_FREEZER: Final = "cgroup.freeze"

FREEZERS: Final = {2: V2_FREEZER, 1: V1_FREEZER}
STATES: Final = {V2_FREEZER: "cgroup.events", V1_FREEZER: V1_FREEZER}
"""The file, beside the freezer, that says whether all processes have stopped."""
FROZEN: Final = {V2_FREEZER: "1", V1_FREEZER: V1_FROZEN}
THAWED: Final = {V2_FREEZER: "0", V1_FREEZER: V1_THAWED}


def freeze_change(place: Group) -> Change:
    """What freezes the group; `CgroupError` if nothing there can."""
    file = place.directory / FREEZERS[place.version]
    if not file.exists():
        raise CgroupError(
            f"no '{file}': cgroup {place.path!r} cannot be frozen (v2: kernel 5.2; v1: its freezer"
            " hierarchy; never the root)"
        )
    return Change(file, FROZEN[file.name])


def wholly_frozen(name: str, text: str) -> bool:
    """Whether every process has stopped, from the text of the state file of freezer `name`."""
    if name == V1_FREEZER:
        return text.strip() == V1_FROZEN
    return "frozen 1" in text.split("\n")


def is_frozen(place: Group) -> bool:
    """Whether every process of the group stands still, by whoever's doing."""
    name = FREEZERS[place.version]
    file = Path(place.directory, STATES[name])
    try:
        return wholly_frozen(name, file.read_text())
    except OSError as error:
        raise CgroupError(f"could not read '{file}': {error.strerror}") from None
