"""Debian's HAProxy, unpacked in the cache and not installed: its package would start a service."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

PACKAGES: Final = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
"""With the libraries that only it needs."""


def home() -> Path:
    """Where it lies: `$SITS_CACHE/haproxy`, by default in /var/cache/sits."""
    return Path(os.environ.get("SITS_CACHE") or "/var/cache/sits") / "haproxy"


def install(root: Path) -> Path:
    """Make sure it is there; returns `root`. A second caller waits for the first."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_name(root.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _unpack(root)
    return root


def command(root: Path) -> tuple[list[str], dict[str, str]]:
    """How to run it: its command and the environment it needs."""
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    return [str(root / "usr/sbin/haproxy")], {**os.environ, "LD_LIBRARY_PATH": str(libraries)}


def _unpack(root: Path) -> None:
    fresh = root.with_name(root.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=fresh, check=True)
    for package in fresh.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(fresh)], check=True)
    fresh.rename(root)
