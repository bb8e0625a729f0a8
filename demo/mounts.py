"""Mounts of our own: in a private mount namespace they vanish with the last process in it."""

import ctypes
import os
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x0002_0000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2


class MountError(RuntimeError):
    """A mount or a namespace was refused; the message says which and why."""


def enter_private_namespace() -> None:
    """Give this process and its children mounts of their own, which nobody outside sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise MountError(f"could not make a mount namespace: {_reason()}")
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise MountError(f"could not make the mounts private: {_reason()}")


def mount(kind: str, point: Path) -> None:
    """Mount a pseudo file system such as bpf or cgroup2 at `point`, made if it is not there."""
    point.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), os.fsencode(point), kind.encode(), 0, None):
        raise MountError(f"could not mount {kind} at '{point}': {_reason()}")


def unmount(point: Path) -> None:
    """Take a mount away, now from the tree and altogether when its last user is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(point), _MNT_DETACH):
        raise MountError(f"could not unmount '{point}': {_reason()}")


def _reason() -> str:
    return os.strerror(ctypes.get_errno()).lower()
