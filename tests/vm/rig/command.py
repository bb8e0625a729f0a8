"""Running the host's own tools, each within a bound of time."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

STOP_S = 10


class RigError(Exception):
    """The rig could not do its part: a tool failed, a package is missing, no boot worked."""


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a tool to its end and return its standard output.

    `env` adds to the environment. Raises RigError, with the end of what the tool said, when it is
    missing, fails or does not finish in `timeout_s` seconds. However this ends, the tool and its
    children end with it.
    """
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A group of its own, to be stopped as a whole.
            process_group=0,
        )
    except OSError as error:
        raise RigError(f"could not run {name}: {error.strerror}") from error
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException as error:
            _stop(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RigError(f"{name} did not finish in {timeout_s:.0f} s") from None
            raise
    if process.returncode != 0:
        said = " / ".join((stderr or stdout).strip().splitlines()[-4:])
        raise RigError(f"{name} failed with status {process.returncode}: {said}")
    return stdout


def _stop(process: "subprocess.Popen[str]") -> None:
    # Asked first: a tool that set something up, such as a mount, takes it down.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
