"""Debian's HAProxy, unpacked in the cache and not installed: its package would start a service."""

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.cached import cache_root, made_once

PACKAGES: Final = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
"""With the libraries that only it needs."""


def home() -> Path:
    """Where it lies: `$SITS_CACHE/haproxy`, by default in /var/cache/sits."""
    return cache_root() / "haproxy"


def install(root: Path) -> Path:
    """Make sure it is there; returns `root`. A second caller waits for the first."""
    return made_once(root, _unpack)


def command(root: Path) -> tuple[list[str], dict[str, str]]:
    """How to run it: its command and the environment it needs."""
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    return [str(root / "usr/sbin/haproxy")], {**os.environ, "LD_LIBRARY_PATH": str(libraries)}


def _unpack(fresh: Path) -> None:
    fresh.mkdir()
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=fresh, check=True)
    for package in fresh.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(fresh)], check=True)


if __name__ == "__main__":
    print(install(home()))
