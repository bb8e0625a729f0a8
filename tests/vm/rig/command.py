"""Running the host's own tools, each within a bound of time."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


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
    missing, fails or does not finish in `timeout_s` seconds.
    """
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RigError(f"{name} did not finish in {timeout_s:.0f} s") from None
    except OSError as error:
        raise RigError(f"could not run {name}: {error.strerror}") from error
    if done.returncode != 0:
        said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise RigError(f"{name} failed with status {done.returncode}: {said}")
    return done.stdout
