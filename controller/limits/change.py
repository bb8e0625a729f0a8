"""What a cgroup file is to hold, and what it holds, as one text that can be compared.

Most files hold one value, and the text is all of it. Some hold a line for each device or region,
of which a change names one: there the text is that line, and its first word is the key. The
freezer of cgroup v1 shows its own state, its parents' and how far it got mixed up in one word: the
text is what was last written. An idle group (cpu.idle) has no weight of its own: its weight's text
is "0", which no other group has.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.limits.cgroup import read

KEYED: Final = frozenset({"io.weight", "io.bfq.weight", "dmem.max"})
"""Files with a line for each device ("default" for all others) or region of GPU memory."""

V1_FREEZER: Final = "freezer.state"
V1_FROZEN: Final = "FROZEN"
V1_THAWED: Final = "THAWED"

IDLE: Final = "0"
IDLE_FILE: Final = "cpu.idle"
IDLE_SHOWN: Final = {"cpu.shares": {"3"}, "cpu.weight": {"0", "1"}}
"""What the weight files of an idle group may hold (WEIGHT_IDLEPRIO in kernel/sched/sched.h, commit
304000390f88 `sched: Cgroup SCHED_IDLE support`): v2 shows 0, and 6.12 the least weight that there
is. That others can have as well, so cpu.idle is asked."""

Slot = tuple[Path, str]
"""A value of its own: a file, and the key of its line where the file has several."""


@dataclass(frozen=True, slots=True)
class Change:
    """`text` is what `file`, or its line of that key, is to hold, as the kernel will show it."""

    file: Path
    text: str

    @property
    def slot(self) -> Slot:
        """Which value this changes."""
        return slot_of(self.file, self.text)


def slot_of(file: Path, text: str) -> Slot:
    """Which value of `file` a text such as `text` is."""
    return file, text.partition(" ")[0] if file.name in KEYED else ""


def shown(file: Path, like: str) -> str:
    """What `file` holds where a change to `like` would change it; "" if it has no such line.

    Raises `CgroupError` if it cannot be read.
    """
    if file.name == V1_FREEZER:
        own = read(file.with_name("freezer.self_freezing"))
        return V1_FROZEN if own == "1" else V1_THAWED
    text = read(file)
    if text in IDLE_SHOWN.get(file.name, ()) and is_idle(file):
        return IDLE
    if file.name not in KEYED:
        return text
    key = slot_of(file, like)[1]
    return next((line for line in text.split("\n") if line.partition(" ")[0] == key), "")


def is_idle(weight_file: Path) -> bool:
    """Whether the group of that weight file is idle; none is before kernel 5.15."""
    file = weight_file.with_name(IDLE_FILE)
    return file.exists() and read(file) == "1"
