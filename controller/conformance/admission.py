"""The check of who is let in: another user asks, and must not be answered."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from controller.conformance.check import BreachError, NotApplicableError, check
from controller.conformance.probe import Probe
from controller.conformance.wire import ANSWER_S, shown
from controller.serving.unix_socket import peer

_STRANGERS: Final = (65534, 65533)
"""User and group ids that own nothing: nobody, and one more should the engine run as nobody."""

_SCRIPT: Final = """
import ctypes, os, socket, sys
path, stranger = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setresgid(stranger, stranger, stranger)
os.setresuid(stranger, stranger, 0)
ctypes.CDLL(None).setfsuid(0)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(float(sys.argv[3]))
sock.connect(path)
try:
    sock.sendall(b'{"id":1,"call":"get"}\\n')
except OSError:
    pass
received = b""
while b"\\n" not in received:
    more = sock.recv(65536)
    if not more:
        break
    received += more
sys.stdout.buffer.write(received)
"""
"""Asks as another user. Its file system uid stays root's, so that the socket's mode does not keep
it out before the engine has looked (setfsuid(2)); peer credentials have the effective uid."""


@check("wire", "Anyone else gets one `denied` error and the end of the connection.")
def stranger(probe: Probe) -> str:
    """Another user is refused by its credentials."""
    if os.geteuid() != 0:
        raise NotApplicableError("only root can become another user")
    uid = next(each for each in _STRANGERS if each not in _engine(probe.path))
    command = [sys.executable, "-I", "-S", "-c", _SCRIPT, str(probe.path), str(uid), str(ANSWER_S)]
    done = subprocess.run(command, capture_output=True, timeout=10 * ANSWER_S, check=False)
    sent = f"a connection as uid {uid}"
    if done.returncode != 0:
        error = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BreachError("a denied error", error, sent)
    try:
        answer = json.loads(done.stdout)
        code = answer["error"]["code"]
    except (ValueError, KeyError, TypeError):
        raise BreachError("a denied error", shown(done.stdout) or "the end", sent) from None
    if code != "denied" or answer.get("ok") is not False:
        raise BreachError("a denied error", shown(done.stdout), sent)
    return f"uid {uid} was denied"


def _engine(path: Path) -> tuple[int, int, int]:
    """Whom not to be: the engine's uid and gid, and the socket file's group."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))
        _, uid, gid = peer(sock)
    return uid, gid, path.stat().st_gid


CHECKS: Final = (stranger,)
