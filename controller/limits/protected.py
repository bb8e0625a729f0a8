"""What is never limited, whatever a policy says: what keeps the machine alive and reachable.

A limit reaches everything below a cgroup, so a cgroup is protected too if anything below it is.
Names are those of systemd's units; processes are looked at as well, since a session over SSH or a
machine without systemd tells nothing by names. Only root's processes in the machine's own PID
namespace count: what a container, or a user, calls itself is no reason to spare it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.limits.cgroup import CgroupError, Group, descendants, read_membership

UNITS: Final = re.compile(
    r"(systemd-.*|dbus(-broker)?|sshd?(@.*)?|NetworkManager|wpa_supplicant|polkit|(serial-)?getty@.*"
    r"|rsyslog|chronyd?|auditd|sitsd)\.service"
)
"""Services that a machine needs to be reached, managed and seen."""

RUNTIMES: Final = re.compile(r"(kubelet|containerd|docker|crio|podman|k3s.*|rke2.*|k0s.*)\.service")
"""Services that start containers, some of them in cgroups below their own: those are fair game."""

COMMANDS: Final = frozenset(
    {
        "systemd",
        "sshd",
        "sshd-session",
        "dbus-daemon",
        "dbus-broker",
        "NetworkManager",
        "kubelet",
        "containerd",
        "dockerd",
        "crio",
        "k3s-server",
        "k3s-agent",
    }
)
"""Names of processes (comm, 15 characters), beside all that begin with `systemd-`."""

ROOT_UID: Final = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """Cgroup paths that must stay free: those of the agent and PID 1, and of the engines."""

    own: frozenset[str] = frozenset()
    engines: frozenset[str] = frozenset()


def why_path(path: str, kept: Kept) -> str | None:
    """Why the cgroup `path` is protected by what it is called or what it holds, or None."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "it is the root of all cgroups"
    if parts[-1] == "init.scope":
        return "it is systemd's own"
    if parts == ["system.slice"]:
        return "services that keep the machine alive are in it"
    if parts[0] == "system.slice":
        for unit in parts[1:]:
            if UNITS.fullmatch(unit):
                return f"{unit} keeps the machine alive and reachable"
        if RUNTIMES.fullmatch(parts[-1]):
            return f"{parts[-1]} runs the machine's containers"
    for what, paths in (("the agent or PID 1", kept.own), ("an engine", kept.engines)):
        if any(_holds(path, each) for each in paths):
            return f"{what} runs in it"
        if any(_holds(each, path) for each in paths if each != "/"):
            return f"it is a part of the cgroup of {what}"
    return None


def why_processes(group: Group, namespace: str | None) -> str | None:
    """Why a cgroup is protected by what runs in it or below, or None.

    `namespace` is the machine's own PID namespace, as `own_namespace` has it.
    """
    for pid in _pids((group, *descendants(group))):
        if pid == 1:
            return "PID 1 is in it"
        name = _command(pid)
        if name is not None and _is_vital(name) and _is_machines(pid, namespace):
            return f"{name} (process {pid}) is in it"
    return None


def own_namespace() -> str | None:
    """Our own PID namespace, which is the machine's wherever an agent can watch it all."""
    return _namespace("self")


def own_paths(version_1: bool, pids: Iterable[int]) -> frozenset[str]:
    """The cgroups of these processes in the hierarchy that rules the CPU."""
    found = set()
    for pid in pids:
        try:
            membership = read_membership(pid)
        except (CgroupError, OSError):
            continue
        path = membership.v1_cpu if version_1 else membership.v2
        if path is not None:
            found.add(path)
    return frozenset(found)


def _holds(path: str, other: str) -> bool:
    """Whether `other` is the cgroup `path` or below it."""
    return other == path or other.startswith(f"{path.rstrip('/')}/")


def _is_vital(name: str) -> bool:
    return name in COMMANDS or name.startswith("systemd-")


def _pids(groups: Iterable[Group]) -> Iterator[int]:
    for group in groups:
        try:
            text = Path(group.directory, "cgroup.procs").read_text()
        except OSError:
            continue
        yield from map(int, text.split())


def _command(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return None


def _is_machines(pid: int, namespace: str | None) -> bool:
    """Whether a process is root's and in the machine's PID namespace; one that is gone is not."""
    try:
        if Path(f"/proc/{pid}").stat().st_uid != ROOT_UID:
            return False
    except OSError:
        return False
    return namespace is None or _namespace(pid) in (namespace, None)


def _namespace(pid: int | str) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None
