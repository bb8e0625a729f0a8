"""Who is at the other end of a Unix socket, as the kernel knows it."""

import socket
from dataclasses import dataclass
from typing import Final

from controller.serving.unix_socket import peer, peer_groups

PEER: Final = "sits.peer"
"""Where a request has its `Peer`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, and its user and groups at that moment."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_at(sock: socket.socket) -> Peer:
    """Who is at the other end of a connected Unix socket."""
    pid, uid, _ = peer(sock)
    return Peer(pid, uid, peer_groups(sock))
