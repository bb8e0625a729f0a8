"""Processes of our own that wait, before they do anything, until they are in their cgroup."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.kernel.conftest import TwinGroup

HERE: Final = Path(__file__).parent


class Child:
    """A script of this directory in a process: it is told to go on, and answers, line by line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    def tell(self, line: str = "") -> None:
        """Write one line to the child."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The next line the child writes; fails when it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self._process.args!r} ended with {self._process.wait()}"
        return line.strip()

    def wait_until_it_blocks(self) -> None:
        """Return when all of it sleeps, so that what is accounted to it stands still."""
        while any(_state(task) != "S" for task in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(0.001)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """None of its threads runs meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            while any(_state(task) != "T" for task in Path(f"/proc/{self.pid}/task").iterdir()):
                time.sleep(0.001)
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self._process.kill()
        self._process.wait()


def _state(task: Path) -> str:
    """One letter, as in proc(5)."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def child(
    script: str,
    *arguments: str,
    group: TwinGroup | None = None,
    cpu: int | None = None,
    wrapper: tuple[str, ...] = (),
) -> Iterator[Child]:
    """A script in `group` and on `cpu` only, which waits to be told to go on; killed at the end.

    `wrapper` is a command that executes another, such as unshare.
    """
    with subprocess.Popen(
        [*wrapper, sys.executable, str(HERE / script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            started = Child(process)
            assert started.answer() == "ready"
            if cpu is not None:
                os.sched_setaffinity(process.pid, {cpu})
            if group is not None:
                group.take_in(process.pid)
            yield started
        finally:
            process.kill()
