"""What tests install once and keep: by default below /var/cache/sits, whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_root() -> Path:
    """`$SITS_CACHE`, by default /var/cache/sits."""
    return Path(os.environ.get("SITS_CACHE") or "/var/cache/sits")


def made_once(root: Path, make: Callable[[Path], None]) -> Path:
    """Have `root`, calling `make` with another name for it, where nothing is, if it is not there.

    It is renamed when complete, so a broken run leaves nothing that looks whole. A second caller
    waits for the first.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            fresh = root.with_name(f"{root.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            make(fresh)
            fresh.rename(root)
    return root
