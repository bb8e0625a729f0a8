"""Tells systemd how the service stands: sd_notify(3), which is one datagram."""

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send `state` where the service manager asked for it; nothing happens without one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.sendto(state.encode(), address)
