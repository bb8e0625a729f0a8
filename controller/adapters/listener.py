"""Who serves an address of this machine: the process that listens, and since when it runs.

An engine whose interface says nothing of restarts is told apart by this: another process, or the
same number started at another time, is another instance.
"""

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.serving.unix_socket import peer

UNIX: Final = "unix:"
"""What a socket's path begins with in an address; anything else is `host:port`."""

_LISTENS: Final = "0A"
"""TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""

_START_FIELD: Final = 19
"""`starttime` in /proc/PID/stat, counted behind the command's name (proc(5), field 22)."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A process: its id, and its start in clock ticks since boot."""

    pid: int
    start_ticks: int

    @property
    def instance(self) -> str:
        """A name for this life of the process."""
        return f"{self.pid}.{self.start_ticks}"


class Listeners:
    """Finds who listens at one address; what it found is kept as long as it holds."""

    def __init__(self, address: str) -> None:
        """`unix:PATH` or `HOST:PORT`."""
        self._address = address
        self._found: tuple[Listener, str, Path] | None = None

    def look(self) -> Listener | None:
        """Who listens now; None for nobody, and for a process that can't be seen from here."""
        if self._address.startswith(UNIX):
            pid = _unix_pid(self._address.removeprefix(UNIX))
            return _listener(pid) if pid else None
        if self._found is not None:
            listener, inode, link = self._found
            if _target(link) == inode and _listener(listener.pid) == listener:
                return listener
        self._found = _search(int(self._address.rpartition(":")[2]))
        return self._found[0] if self._found is not None else None


def _unix_pid(path: str) -> int:
    """Who called listen(2) on the socket: the kernel remembers (SO_PEERCRED, unix(7))."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1)
        try:
            sock.connect(path)
            return peer(sock)[0]
        except OSError:
            return 0


def _listener(pid: int) -> Listener | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return Listener(pid, int(stat.rpartition(")")[2].split()[_START_FIELD]))


def _search(port: int) -> tuple[Listener, str, Path] | None:
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # it may end meanwhile, or be somebody else's
            for link in (process / "fd").iterdir():
                listener = _listener(int(process.name)) if _target(link) in wanted else None
                if listener is not None:
                    return listener, _target(link), link
    return None


def _inodes(port: int) -> set[str]:
    """Of the sockets that listen on a port, in this network namespace."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
