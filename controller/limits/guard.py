"""The watchdog: undoes every limit when those who set them are dead, stopped or hung.

`python -m controller.limits.guard --undo PATH --adapters DIR --fd N --timeout-ms 700`. It waits on
a pipe whose write end the agent and the controller hold; the controller writes a byte ('b') each
100 ms, and another ('f') before each freeze: its deadline is on the list then, and the guard thaws
what is still frozen 10 ms later. End of file means that both are gone: the list is run, then what
adapters that died too have left in DIR, and what the agent left of MPS limits (`--mps DIR`), and
the guard ends. Silence for the timeout while there is
a list means that the controller is stopped or hung: the list is run and the guard stays.

It ignores SIGTERM, SIGINT and SIGHUP, so that stopping the service cannot take it away before its
work is done, and imports little: it has to run when memory and CPU are short.
"""

import os
import select
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controller.limits.undo import THAW_GRACE_NS, Report, describe, run_undo, thaw_overdue

if TYPE_CHECKING:
    from subprocess import Popen

BEAT: Final = b"b"
FREEZE: Final = b"f"

START_TIMEOUT_MS: Final = 10_000
LAST_TRIES: Final = 25
"""How often the last run is repeated, each 200 ms, while something is left on the list."""

_TRY_EVERY_S: Final = 0.2
_PACKAGES: Final = Path(__file__).parents[2]


ADAPTERS: Final = "controller.adapters.command"
MPS: Final = "controller.mps.undo"
"""Modules that undo what stands in the undo files of a directory."""

LEFT_TIMEOUT_S: Final = 30.0
"""How long one of these may take: an engine, or a control program, may not answer."""


def start_guard(
    undo_path: Path, timeout_ms: int, adapters: Path | None = None, mps: Path | None = None
) -> "tuple[Popen[bytes], int]":
    """A guard that is on watch, with its pipe: `launch_guard` and `await_guard` in one."""
    guard, write_fd = launch_guard(undo_path, timeout_ms, adapters, mps)
    try:
        await_guard(guard)
    except RuntimeError:
        os.close(write_fd)
        raise
    return guard, write_fd


def launch_guard(
    undo_path: Path, timeout_ms: int, adapters: Path | None = None, mps: Path | None = None
) -> "tuple[Popen[bytes], int]":
    """Start a guard for the list at `undo_path`, with its pipe; see `await_guard`.

    `adapters` and `mps` are where the undo files of adapters and of MPS limits are, if anywhere.

    The second value is the pipe's write end. The caller keeps it open as long as it lives and hands
    it to the controller alone, with `pass_fds`: it is close-on-exec, so no other child gets it and
    keeps the guard waiting. The guard itself has the read end, /dev/null and the caller's stderr.
    Raises `OSError` if there can be no process.
    """
    # Not at the top: the guard itself runs this module and has no use for it.
    from subprocess import DEVNULL, PIPE, Popen

    read_fd, write_fd = os.pipe()
    options = ["--undo", str(undo_path.absolute()), "--fd", str(read_fd)]
    if adapters is not None:
        options += ["--adapters", str(adapters.absolute())]
    if mps is not None:
        options += ["--mps", str(mps.absolute())]
    # Without site, since the packages are in the working directory; -E for a hostile environment.
    command = (sys.executable, "-E", "-S", "-m", __name__, *options)
    try:
        guard = Popen(
            (*command, "--timeout-ms", str(timeout_ms)),
            cwd=_PACKAGES,
            stdin=DEVNULL,
            stdout=PIPE,
            pass_fds=(read_fd,),
            start_new_session=True,
        )
    except OSError:
        os.close(write_fd)
        raise
    finally:
        os.close(read_fd)
    return guard, write_fd


def await_guard(guard: "Popen[bytes]") -> None:
    """Wait until it is on watch; otherwise it is ended, and `RuntimeError` says why."""
    assert guard.stdout is not None
    try:
        with guard.stdout as ready:
            poll = select.poll()
            poll.register(ready, select.POLLIN)
            if not poll.poll(START_TIMEOUT_MS):
                raise RuntimeError(f"could not start the guard: not ready in {START_TIMEOUT_MS} ms")
            # To the end: only then is the guard's stdout /dev/null.
            if not ready.read():
                raise RuntimeError(f"could not start the guard: it ended with {guard.wait()}")
    except BaseException:
        guard.kill()
        guard.wait()
        raise


def watch(
    undo_path: Path, fd: int, timeout_ms: int, adapters: Path | None = None, mps: Path | None = None
) -> int:
    """Guard the list at `undo_path` until the pipe's end; 0 if nothing is left to undo then."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    last = Report()
    heard_ns, thaw_ns = time.monotonic_ns(), None
    while True:
        silent_ns = heard_ns + timeout_ms * 1_000_000
        due_ns = silent_ns if thaw_ns is None else min(silent_ns, thaw_ns)
        if poll.poll(max(0, due_ns - time.monotonic_ns()) / 1e6):
            said = os.read(fd, 4096)
            if not said:
                break
            last, heard_ns = Report(), time.monotonic_ns()
            if FREEZE in said:
                _, thaw_ns = _thaw(undo_path)
        elif thaw_ns is not None and due_ns == thaw_ns:
            late, thaw_ns = _thaw(undo_path)
            _tell("a freeze was overdue", late)
        else:
            last = _run(undo_path, f"silent for {timeout_ms} ms", last)
            heard_ns = time.monotonic_ns()
    for _ in range(LAST_TRIES):
        last = _run(undo_path, "agent and controller are gone", last)
        if last.complete:
            break
        time.sleep(_TRY_EVERY_S)
    left = ((ADAPTERS, adapters), (MPS, mps))
    undone = [undo_left(module, directory) for module, directory in left if directory is not None]
    return 0 if last.complete and all(undone) else 1


def undo_left(module: str, directory: Path) -> bool:
    """Undo what adapters, or an agent, were killed before they could; whether nothing is left.

    In a process of its own: that needs an engine's protocol, and this one imports nothing. One that
    still sees to its undo file ends by itself, and is waited for.
    """
    if not any(directory.glob("*.undo.json")):
        return True
    from subprocess import DEVNULL, SubprocessError, run

    command = (sys.executable, "-E", "-m", module, "--undo", str(directory))
    with suppress(OSError, SubprocessError):
        done = run(
            command,
            cwd=_PACKAGES,
            stdin=DEVNULL,
            stdout=2,
            timeout=LEFT_TIMEOUT_S,
            check=False,
        )
        return done.returncode == 0
    return False


def main(arguments: Sequence[str]) -> int:
    """The guard process."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    parser = ArgumentParser(prog="sits-guard", description="Undo CPU limits when their owners die.")
    parser.add_argument("--undo", type=Path, required=True, help="the undo list")
    parser.add_argument("--adapters", type=Path, help="where adapters have their undo files")
    parser.add_argument("--mps", type=Path, help="where MPS limits have theirs")
    parser.add_argument("--fd", type=int, required=True, help="the read end of the heartbeat pipe")
    parser.add_argument("--timeout-ms", type=int, required=True, help="silence that is too long")
    options = parser.parse_args(arguments)
    if options.timeout_ms <= 0:
        parser.error(f"--timeout-ms must be above 0, not {options.timeout_ms}")
    with suppress(OSError):
        os.write(1, b"r")
    os.dup2(0, 1)
    return watch(options.undo, options.fd, options.timeout_ms, options.adapters, options.mps)


def _run(undo_path: Path, why: str, last: Report) -> Report:
    """Run the list; says what it did, unless that was the same as the `last` time."""
    try:
        report = run_undo(undo_path)
    except Exception as error:  # A watchdog outlives what it cannot foresee, and tries again.
        report = Report(problems=(f"could not run undo list '{undo_path}': {error}",), busy=True)
    if report != last:
        _tell(why, report)
    return report


def _thaw(undo_path: Path) -> tuple[Report, int | None]:
    """End what is overdue; when to look again."""
    try:
        return thaw_overdue(undo_path)
    except Exception as error:  # As in `_run`.
        problem = f"could not thaw what is on '{undo_path}': {error}"
        return Report(problems=(problem,)), time.monotonic_ns() + THAW_GRACE_NS


def _tell(why: str, report: Report) -> None:
    for line in describe(report):
        # Whoever read our stderr may be dead too.
        with suppress(OSError):
            os.write(2, f"sits-guard: {why}: {line}\n".encode(errors="backslashreplace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
