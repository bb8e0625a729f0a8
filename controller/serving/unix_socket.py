"""A Unix socket that only some may use: made with the right mode, checked by peer credentials."""

import os
import socket
import struct
from pathlib import Path
from typing import Final

BACKLOG: Final = 128

_PEERCRED: Final = struct.Struct("iII")
_SO_PEERGROUPS: Final = 59
"""Linux: the supplementary groups of the peer (socket(7)); Python has no name for it."""

_MAX_OPTION_BYTES: Final = 1024
"""What Python reads of a socket option at most: 256 groups."""


class AdminError(OSError):
    """The admin socket could not be made."""


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end, as it connected or listened (unix(7))."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    pid, uid, gid = _PEERCRED.unpack(raw)
    return pid, uid, gid


def peer_groups(sock: socket.socket) -> frozenset[int]:
    """The groups at the other end, as it connected: its own and its supplementary ones."""
    _, _, gid = peer(sock)
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    except OSError:
        groups = b""  # More than fit: only its own group counts then.
    members = struct.unpack(f"{len(groups) // 4}I", groups[: len(groups) // 4 * 4])
    return frozenset((gid, *members))


def admits(sock: socket.socket, admin_gid: int | None) -> bool:
    """Whether the peer of a connected Unix socket is root, this user, or in the admin group."""
    _, uid, _ = peer(sock)
    if uid in {0, os.geteuid()}:
        return True
    return admin_gid is not None and admin_gid in peer_groups(sock)


def listen(path: Path, admin_gid: int | None) -> socket.socket:
    """Bind a listening socket at `path`, replacing a dead one but never a live one.

    Only root and this user may connect, and the admin group where there is one.
    """
    if path.exists() and not path.is_socket():
        raise AdminError(f"could not use admin socket '{path}': a file that is no socket is there")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with probe:
            probe.setblocking(False)
            probe.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        pass
    except OSError as error:
        raise AdminError(f"could not use admin socket '{path}': {error}") from error
    else:
        raise AdminError(f"could not use admin socket '{path}': another process listens there")
    # Made under another name first: its mode and group are right before anyone can connect.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fresh.unlink(missing_ok=True)
        sock.bind(str(fresh))
        if admin_gid is not None:
            os.chown(fresh, -1, admin_gid)
        fresh.chmod(0o600 if admin_gid is None else 0o660)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        fresh.replace(path)
    except OSError as error:
        sock.close()
        fresh.unlink(missing_ok=True)
        raise AdminError(f"could not make admin socket '{path}': {error}") from error
    return sock
