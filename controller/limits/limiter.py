"""Sets limits on cgroups so that each is undone, by itself or by the guard.

One `Limiter` owns one undo list. A file's first original is kept however often it is changed.

Two things can happen to a limit from outside. Somebody else writes the file: the limiter yields,
that is, it forgets the file and leaves it alone until `reset`. Or the guard, or the supervisor,
undoes it, because this process was stopped for longer than the guard's timeout: the limit is then
no longer held, and the next `set_…` applies it afresh. `check` finds both.

A freeze is held like a limit until its deadline, and made by the freezer, which ends it by then.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from controller.limits.block_io import io_weight_change
from controller.limits.cgroup import Group, Hierarchies, read_hierarchies, read_mount_points
from controller.limits.change import Change
from controller.limits.cpu import quota_change, read_quota, weight_change
from controller.limits.freezes import Freezes, Thawed
from controller.limits.guard import BEAT
from controller.limits.holds import Held, Holds, Lapsed
from controller.limits.memory import dmem_max_change, memory_high_change
from controller.limits.order import Step, in_order
from controller.limits.places import place_of
from controller.limits.undo import Foreign, Report

BEAT_EVERY_NS: Final = 100_000_000


class Limiter:
    """Sets, releases and watches limits. Not for use from several threads."""

    def __init__(
        self,
        undo_path: Path,
        heartbeat_fd: int | None = None,
        *,
        roots: Sequence[Path] | None = None,
        owner: str = "controller",
        hierarchies: Hierarchies | None = None,
    ) -> None:
        """Use the undo list at `undo_path`, whose directory exists.

        `heartbeat_fd` is the write end of the guard's pipe; it becomes non-blocking and stays the
        caller's to close. `roots` is as in `run_undo`, `owner` goes into the list's entries. In
        `hierarchies`, the machine's own by default, a group of cgroup v1 has its other files.
        """
        self._beat_fd = heartbeat_fd
        self._last_beat_ns = 0
        self._hierarchies = read_hierarchies() if hierarchies is None else hierarchies
        self._holds = Holds(undo_path, read_mount_points() if roots is None else roots, owner)
        self._freezes = Freezes(self._holds, self._hierarchies, heartbeat_fd)
        if heartbeat_fd is not None:
            os.set_blocking(heartbeat_fd, False)

    def set_weight(self, group: Group, weight: int, reason: str) -> Held | Foreign:
        """Set the group's weight (1–10000). Returns what is held now, or why it is left alone.

        Raises `CgroupError` if it cannot be done; then the file is as it was.
        """
        return self._set(group, weight_change(group, weight), reason)

    def set_quota(self, group: Group, cores: float | None, reason: str) -> Held | Foreign:
        """Set the group's quota in cores, None for no limit; otherwise as `set_weight`.

        Lifting a quota is held like any other value: `release` puts the original back.
        """
        return self._set(group, quota_change(group, cores), reason)

    def set_quotas(
        self, cores_by_group: Mapping[Group, float | None], reason: str
    ) -> dict[Group, Held | Foreign]:
        """Set the quotas of a tree, each as `set_quota` does, in an order that cgroup v1 takes.

        Raises `CgroupError` at the first that is refused; those before it stay, and are held.
        """
        groups = {group.path: group for group in cores_by_group}
        steps = (
            Step(path, read_quota(group), cores_by_group[group]) for path, group in groups.items()
        )
        return {
            groups[step.path]: self.set_quota(groups[step.path], step.new, reason)
            for step in in_order(steps)
        }

    def set_memory_high(self, group: Group, limit_bytes: int | None, reason: str) -> Held | Foreign:
        """Set memory.high, None for no limit; otherwise as `set_weight`.

        Refused under cgroup v1, which has nothing like it. See `memory_high_change` for what the
        write costs before kernel 6.16.
        """
        place = place_of(self._hierarchies, group, "memory")
        return self._set(group, memory_high_change(place, limit_bytes), reason, place)

    def set_io_weight(self, group: Group, weight: int, reason: str) -> Held | Foreign:
        """Set the group's weight (1–10000) for all disks; otherwise as `set_weight`."""
        place = place_of(self._hierarchies, group, "io")
        return self._set(group, io_weight_change(place, weight), reason, place)

    def set_dmem_max(
        self, group: Group, region: str, limit_bytes: int | None, reason: str
    ) -> Held | Foreign:
        """Limit the group's GPU memory in a region, None: no limit; otherwise as `set_weight`."""
        return self._set(group, dmem_max_change(group, region, limit_bytes), reason)

    def freeze(self, group: Group, for_ms: int, reason: str) -> Held | Foreign:
        """Stop every process of the group for `for_ms` at most.

        A group that is frozen already stays so until the deadline it has: asking again does not
        make it later. Call `thawed` each tick; it ends what the freezer did not. Raises
        `CgroupError` if it cannot be done, as while the freezer is started at the first call, if
        somebody else has frozen the group, or if we, or PID 1, are in it.
        """
        self.heartbeat(time.monotonic_ns())
        return self._freezes.freeze(group, for_ms, reason)

    def thaw(self, group: Group) -> Report:
        """End the group's freeze now, if there is one; otherwise as `release`."""
        return self._freezes.thaw(group)

    def thawed(self) -> tuple[Thawed, ...]:
        """The freezes that are over, since the last call; to be called each tick.

        It never waits, but where there is something to end: a freeze whose freezer has died, or is
        late, is ended here. Raises `CgroupError` if the undo list cannot be used: the next call
        tries again to strike it off.
        """
        return self._freezes.thawed()

    def prepare_to_freeze(self, wait_ms: int = 0) -> bool:
        """Start the freezer ahead of its first use; whether it is ready."""
        return self._freezes.prepare(wait_ms)

    @property
    def freezer_pid(self) -> int | None:
        """The freezer's process id, None while there is none."""
        return self._freezes.freezer_pid

    def close(self) -> None:
        """End the freezer, which thaws first. Limits stay until they are released."""
        self._freezes.close()

    def release(self, group: Group, files: Collection[str] | None = None) -> Report:
        """Put the group's files back, or those called so; what could not be put back stays held.

        It is in the report. Raises `CgroupError` only if the undo list cannot be used.
        """
        with self._holds.listed() as listed:
            ours = {held.slot for held in self.held() if held.group == group}
            return self._holds.release(
                slot
                for slot in listed
                if (slot in ours or slot[0].parent == group.directory)
                and (files is None or slot[0].name in files)
            )

    def release_all(self) -> Report:
        """Put every file on the list back, those that an earlier process left included."""
        with self._holds.listed() as listed:
            return self._holds.release(listed)

    def held(self) -> tuple[Held, ...]:
        """The limits in force as far as is known, oldest first; `check` looks again."""
        return self._holds.all()

    def check(self) -> tuple[Foreign | Lapsed, ...]:
        """Look at every held file; one that somebody else wrote, or undid, is no longer held.

        To be called every second or so: it also drops groups that vanished. Returns what was
        noticed since the last call, without what `set_…` and `release` returned themselves.
        """
        return self._holds.check()

    def reset(self) -> None:
        """Forget what others wrote: those files may be limited again."""
        self._holds.forgive()

    def heartbeat(self, now_ns: int) -> bool:
        """Tell the guard that this process lives; called each tick, writes each 100 ms at most.

        Never blocks. Returns False if the guard is gone, so that another can be started.
        """
        if self._beat_fd is None or now_ns - self._last_beat_ns < BEAT_EVERY_NS:
            return True
        self._last_beat_ns = now_ns
        try:
            os.write(self._beat_fd, BEAT)
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return True

    def _set(
        self, group: Group, change: Change, reason: str, place: Group | None = None
    ) -> Held | Foreign:
        self.heartbeat(time.monotonic_ns())
        return self._holds.set(group, change, reason, place=place)
