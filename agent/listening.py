"""The TCP ports that a process listens on, wherever its network namespace is.

psutil takes the sockets of a process, but looks for them in the caller's own namespace: an engine
in a container would have no port.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from agent.sock_diag import SockDiag, open_in

PROC: Final = Path("/proc")
KNOWN_S: Final = 30.0
"""For so long the ports of a process are known, if nothing else listens meanwhile."""

_LISTEN: Final = "0A"
"""TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp writes it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A process's ports as of `at_s`, when these sockets listened in its namespace."""

    at_s: float
    listeners: Mapping[str, int]
    ports: frozenset[int]


def listening_ports(pid: int, proc: Path = PROC) -> frozenset[int]:
    """The ports of its listening sockets; none if it is gone or can't be looked into."""
    return _ports(proc / str(pid), _listeners(proc / str(pid)))


class ListeningPorts:
    """The same at every look, for less: an engine with 10,000 connections has as many descriptors.

    They are looked at anew when other sockets listen in its network namespace than last time, and
    now and then, for a listening socket may also be handed from one process to another.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Known] = {}
        self._now: dict[int, _Known] = {}
        self._inside: dict[int, Mapping[str, int]] = {}

    def next_look(self) -> None:
        """Another look begins: what the one before it did not ask for is forgotten."""
        self._before, self._now = self._now, {}
        self._inside = {}

    def of(self, pid: int, now_s: float) -> frozenset[int]:
        """A process's ports, as `listening_ports` has them."""
        home, before = PROC / str(pid), self._before.get(pid)
        listeners = self._listeners(home)
        same = before is not None and before.listeners == listeners
        if before is not None and same and now_s - before.at_s < KNOWN_S:
            known = before
        else:
            known = _Known(now_s, listeners, _ports(home, listeners))
        self._now[pid] = known
        return known.ports

    def _listeners(self, home: Path) -> Mapping[str, int]:
        """Asked once a look of each namespace: an engine may be many processes in one."""
        try:
            namespace = _namespace(home)
        except OSError:
            return _listeners(home)
        if namespace not in self._inside:
            self._inside[namespace] = _listeners(home)
        return self._inside[namespace]


class Listeners:
    """Who listens on a port of our own network namespace, remembered as `ListeningPorts` are.

    To find them, the descriptors of all processes are looked at.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, frozenset[str], frozenset[int]]] = {}

    def of(self, port: int, now_s: float) -> frozenset[int]:
        """The processes that have a socket which listens on `port`."""
        listeners = _listeners(PROC / "self")
        sockets = frozenset(inode for inode, its in listeners.items() if its == port)
        at_s, before, pids = self._known.get(port, (0.0, frozenset(), frozenset()))
        stay = all((PROC / str(pid)).exists() for pid in pids)
        if not (sockets == before and stay and now_s - at_s < KNOWN_S):
            mine = dict.fromkeys(sockets, port)
            pids = frozenset(pid for pid in _all() if _ports(PROC / str(pid), mine))
            # systemd keeps the socket by which it started a service, and is everybody's parent
            pids = pids - {1} or pids
            self._known[port] = now_s, sockets, pids
        return pids


def parse_listeners(lines: Iterable[str]) -> dict[str, int]:
    """The port of each listening socket in a /proc/net/tcp or tcp6, by its inode.

    The format is that of Documentation/networking/proc_net_tcp.rst. The kernel lists those that
    listen first (tcp_get_idx of net/ipv4/tcp_ipv4.c): no line after them is read.
    """
    found = {}
    for line in islice(lines, 1, None):
        fields = line.split()
        if len(fields) <= 9 or fields[3] != _LISTEN:
            break
        found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _all() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - names only


def _listeners(home: Path) -> dict[str, int]:
    """The ports of all sockets that listen in a process's network namespace, by inode.

    By sock_diag, for the kernel walks its whole table of connections to show /proc/net/tcp, which
    takes milliseconds and is read only where we may not ask.
    """
    with suppress(OSError), _sock_diag(home) as diag:
        return diag.listening()
    found: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError), (home / "net" / name).open() as lines:
            found |= parse_listeners(lines)
    return found


def _sock_diag(home: Path) -> SockDiag:
    ours = _namespace(home) == _namespace(PROC / "self")
    return SockDiag() if ours else open_in(home / "ns" / "net")


def _namespace(home: Path) -> int:
    """The inode of a process's network namespace; `OSError` if it is gone or we may not ask."""
    return os.stat(f"{home}/ns/net").st_ino  # noqa: PTH116 - asked of every process of an engine


def _ports(home: Path, listeners: Mapping[str, int]) -> frozenset[int]:
    """The ports of those that the process has open."""
    if not listeners:
        return frozenset()
    names = {f"socket:[{inode}]": port for inode, port in listeners.items()}
    found = set()
    with suppress(OSError), os.scandir(home / "fd") as descriptors:
        for each in descriptors:
            with suppress(OSError):
                found.add(names.get(os.readlink(each.path)))  # noqa: PTH115 - pathlib takes thrice as long
    return frozenset(port for port in found if port is not None)
