"""The TCP ports that a process listens on, wherever its network namespace is.

psutil takes the sockets of a process, but looks for them in the caller's own namespace: an engine
in a container would have no port.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"
"""TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp writes it."""


def listening_ports(pid: int, proc: Path = PROC) -> frozenset[int]:
    """The ports of its listening sockets; none if it is gone or can't be looked into."""
    home = proc / str(pid)
    sockets = _sockets(home / "fd")
    ports: set[int] = set()
    for name in ("tcp", "tcp6") if sockets else ():
        with suppress(OSError):
            listeners = parse_listeners((home / "net" / name).read_text())
            ports.update(port for inode, port in listeners.items() if inode in sockets)
    return frozenset(ports)


def parse_listeners(text: str) -> dict[str, int]:
    """The port of each listening socket in a /proc/net/tcp or tcp6, by its inode.

    The format is that of Documentation/networking/proc_net_tcp.rst.
    """
    found = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _sockets(descriptors: Path) -> set[str]:
    """The inodes of all sockets that a process has open."""
    found = set()
    with suppress(OSError):
        for each in descriptors.iterdir():
            with suppress(OSError):
                kind, _, inode = str(each.readlink()).partition(":[")
                if kind == "socket":
                    found.add(inode.rstrip("]"))
    return found
