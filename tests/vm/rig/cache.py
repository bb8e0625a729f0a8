"""The rig's cache: what is dear to make is made once, whole or not at all."""

import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cached import cache_root
from tests.vm.rig.command import RigError

LOCK_WAIT_S = 1800


def default_root() -> Path:
    """Return `$SITS_CACHE/vm`, by default /var/cache/sits/vm."""
    return cache_root() / "vm"


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache that this process holds alone; `work` is emptied when it lets go."""

    root: Path
    work: Path

    def build(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the entry `name`, a directory, calling `make` with an empty one if it is not kept.

        A build that fails or is killed leaves no entry.
        """
        entry = self.root / name
        if not entry.is_dir():
            fresh = self.scratch()
            make(fresh)
            entry.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(entry)
        return entry

    def scratch(self) -> Path:
        """Return a new empty directory that lasts as long as the cache is held."""
        return Path(tempfile.mkdtemp(dir=self.work))


@contextmanager
def hold(root: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[Cache]:
    """Hold the cache for one run; another run waits its turn, for `wait_s` seconds at most.

    Raises RigError when the cache cannot be written or the turn does not come.
    """
    work = root / "work"
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / "lock").open("a")
    except OSError as error:
        raise RigError(f"could not open the cache '{root}': {error.strerror}") from error
    with lock:
        _take(lock.fileno(), root, time.monotonic() + wait_s)
        # What lies there now was left by a run that was killed.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield Cache(root, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _take(lock: int, root: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise RigError(f"another run holds the cache '{root}'") from None
            time.sleep(0.5)
        else:
            return
