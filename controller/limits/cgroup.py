"""Where cgroups are mounted, which group a process is in, and which directory limits its CPU.

Parsers take the text of files under /proc and have no IO. The same code serves machines with v2
only, hybrid ones (v2 for processes, v1 for controllers) and v1 only. A cgroup path is what
/proc/PID/cgroup shows, such as "/sits/engine".
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

MOUNTINFO: Final = Path("/proc/self/mountinfo")

Version = Literal[1, 2]


class CgroupError(RuntimeError):
    """What was asked of a cgroup cannot be done; the message names the file and the cause."""


class CgroupGoneError(CgroupError):
    """The cgroup, or the file of it that was asked for, does not exist (any more)."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy; `root` is the cgroup path that `point` shows ("/" but in containers)."""

    point: Path
    root: str = "/"

    def directory(self, path: str) -> Path:
        """The directory of cgroup `path`; `CgroupError` if this mount does not show it."""
        parts = path.split("/")
        if not path.startswith("/") or ".." in parts or "\0" in path:
            raise CgroupError(f"a cgroup path starts with '/' and has no '..', unlike {path!r}")
        wanted = [part for part in parts if part]
        top = [part for part in self.root.split("/") if part]
        if wanted[: len(top)] != top:
            raise CgroupError(
                f"cgroup {path!r} is not below {self.root!r}, all that {str(self.point)!r} shows"
            )
        return self.point.joinpath(*wanted[len(top) :])


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The v2 tree, and the v1 hierarchies of the controllers that limits use."""

    v2: Mount | None
    v1_cpu: Mount | None
    v1_memory: Mount | None = None
    v1_freezer: Mount | None = None
    v1_blkio: Mount | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """The cgroup paths a process is in; None where that hierarchy does not exist."""

    v2: str | None
    v1_cpu: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """One cgroup in the hierarchy that controls its CPU.

    `cgroup_id` is the directory's inode number. On 64-bit kernels since 5.5 that is the kernel's
    own 64-bit id (`kn->id`), the one BPF programs read.
    """

    path: str
    directory: Path
    version: Version
    cgroup_id: int


def parse_mountinfo(text: str) -> Hierarchies:
    """The hierarchies in the text of /proc/PID/mountinfo (format: proc_pid_mountinfo(5)).

    Of several mounts of one hierarchy the one that shows most of it (the shortest root) is taken,
    the first of these.
    """
    mounts = list(cgroup_mounts(text))

    def v1(controller: str) -> Mount | None:
        return _widest(
            mount for kind, mount, names in mounts if kind == "cgroup" and controller in names
        )

    return Hierarchies(
        v2=_widest(mount for kind, mount, _ in mounts if kind == "cgroup2"),
        v1_cpu=v1("cpu"),
        v1_memory=v1("memory"),
        v1_freezer=v1("freezer"),
        v1_blkio=v1("blkio"),
    )


def mount_points(text: str) -> tuple[Path, ...]:
    """Every cgroup mount point, of either version and any controller, in mountinfo's order."""
    return tuple(mount.point for _, mount, _ in cgroup_mounts(text))


def cgroup_mounts(text: str) -> Iterator[tuple[str, Mount, list[str]]]:
    """Every cgroup mount in the text of mountinfo: its type, itself, and its options."""
    for line in text.split("\n"):
        before, separator, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            continue
        if tail[0] in ("cgroup", "cgroup2"):
            mount = Mount(Path(_unescape(fields[4])), _unescape(fields[3]))
            yield tail[0], mount, tail[2].split(",")


def parse_membership(text: str) -> Membership:
    """The paths in the text of /proc/PID/cgroup (format: cgroups(7))."""
    return Membership(v2=membership_in(text, ""), v1_cpu=membership_in(text, "cpu"))


def membership_in(text: str, controller: str) -> str | None:
    """The path in one hierarchy, by a controller of v1's or "" for v2's; None if there is none."""
    found = None
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator or not path.startswith("/"):
            continue
        if controller in controllers.split(",") and (controller or hierarchy == "0"):
            found = path
    return found


def read_hierarchies(mountinfo: Path = MOUNTINFO) -> Hierarchies:
    """The hierarchies mounted on this machine."""
    return parse_mountinfo(os.fsdecode(mountinfo.read_bytes()))


def read_mount_points(mountinfo: Path = MOUNTINFO) -> tuple[Path, ...]:
    """Every cgroup mount point on this machine."""
    return mount_points(os.fsdecode(mountinfo.read_bytes()))


def read_membership(pid: int) -> Membership:
    """The cgroups of process `pid`; `CgroupError` if there is no such process."""
    try:
        text = os.fsdecode(Path(f"/proc/{pid}/cgroup").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        raise CgroupError(f"could not find the cgroup of process {pid}: no such process") from None
    return parse_membership(text)


def cpu_group(hierarchies: Hierarchies, path: str) -> Group:
    """The group that controls the CPU of cgroup `path`.

    It lies in the v1 cpu hierarchy where there is one, else in v2. Raises `CgroupGoneError` if
    there is no such cgroup, and `CgroupError` if its CPU cannot be controlled; then the message
    says which file would have to be written. Nothing is written here.
    """
    if hierarchies.v1_cpu is not None:
        mount, version = hierarchies.v1_cpu, 1
    elif hierarchies.v2 is not None:
        mount, version = hierarchies.v2, 2
    else:
        raise CgroupError("no cgroup hierarchy with the cpu controller is mounted")
    directory = mount.directory(path)
    if not path.strip("/"):
        raise CgroupError("the root cgroup has no CPU limits: name a cgroup below it")
    try:
        cgroup_id = directory.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        raise CgroupGoneError(f"no such cgroup: {path!r} (no {str(directory)!r})") from None
    if version == 1:
        return Group(path, directory, 1, cgroup_id)
    if not (directory / "cpu.weight").exists():
        raise CgroupError(_why_no_cpu(mount, path, directory))
    return Group(path, directory, 2, cgroup_id)


def cpu_group_of(hierarchies: Hierarchies, pid: int) -> Group:
    """The group that controls the CPU of process `pid`; raises as `cpu_group` does."""
    membership = read_membership(pid)
    path = membership.v2 if hierarchies.v1_cpu is None else membership.v1_cpu
    if path is None:
        raise CgroupError(f"process {pid} is in no cgroup that controls its CPU")
    return cpu_group(hierarchies, path)


def descendants(group: Group) -> tuple[Group, ...]:
    """The groups below `group`, parents before children; those that vanish meanwhile are left out.

    Under v2 they may lack the cpu controller: their ids are for attribution, not for limits.
    """
    found = []
    for parent, names, _ in os.walk(group.directory):
        names.sort()
        for name in names:
            directory = Path(parent, name)
            try:
                cgroup_id = directory.stat().st_ino
            except FileNotFoundError:
                continue
            below = directory.relative_to(group.directory)
            found.append(
                Group(f"{group.path.rstrip('/')}/{below}", directory, group.version, cgroup_id)
            )
    return tuple(sorted(found, key=lambda each: each.directory.parts))


def read(file: Path) -> str:
    """A cgroup file's text without the newline; `CgroupGoneError` if it does not exist."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError as error:
        raise _refused("read", file, error) from None


def write(file: Path, text: str) -> None:
    """Write `text` to a cgroup file that exists; never creates one and follows no symbolic link.

    O_NONBLOCK keeps kernels since 6.16 from reclaiming memory before they return.
    """
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(file, flags)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise _refused(f"write {text!r} to", file, error) from error


def _refused(what: str, file: Path, error: OSError) -> CgroupError:
    # ENODEV is what the kernel says when the group went after its file was opened.
    gone = isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ENODEV
    kind = CgroupGoneError if gone else CgroupError
    return kind(f"could not {what} '{file}': {error.strerror}")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _widest(mounts: Iterable[Mount]) -> Mount | None:
    return min(mounts, key=lambda mount: len(mount.root), default=None)


def _why_no_cpu(mount: Mount, path: str, directory: Path) -> str:
    start = f"the cpu controller is not enabled for cgroup {path!r}"
    available = mount.point / "cgroup.controllers"
    if "cpu" not in read(available).split():
        return f"{start}: {str(available)!r} does not list it (bound to v1, or not in this kernel)"
    between = [each for each in directory.parents if each.is_relative_to(mount.point)]
    controls = [each / "cgroup.subtree_control" for each in reversed(between)]
    missing = [f"'{file}'" for file in controls if "cpu" not in read(file).split()]
    if not missing:
        return f"{start}, though its parents pass it on: the kernel offers no cpu.weight there"
    return f"{start}: write +cpu to {', then to '.join(missing)}"
