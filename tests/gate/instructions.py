"""Instructions a turn of each hot path takes, by callgrind, which simulates the processor.

The process dumps its count at each mark (`tests.gate.hot`). A turn is the difference between twice
as many turns and so many: what comes with the measuring is in both.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.gate.comparing import Group
from tests.gate.hot import TIMES

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 300
MARKS: Final = 3
"""Of each path."""

_TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def instructions() -> Group:
    """A turn of each path; `RuntimeError` if valgrind can't run it."""
    with TemporaryDirectory() as directory:
        names = _observed(Path(directory))
        counts = [_total(path) for path in dumps(Path(directory))]
    if len(counts) != MARKS * len(names):
        raise RuntimeError(f"could not count instructions: {len(counts)} dumps, {len(names)} paths")
    return Group(made_with(), dict(zip(names, per_turn(counts, TIMES), strict=True)))


def per_turn(counts: Sequence[int], times: int) -> list[int]:
    """What a turn took, from the counts at three marks of each path, one path after another."""
    return [
        round((twice - once) / times)
        for once, twice in zip(counts[1::MARKS], counts[2::MARKS], strict=True)
    ]


def total_of(dump: str) -> int:
    """All that a dump of callgrind's counted; `ValueError` if it is not one."""
    found = _TOTAL.search(dump)
    if found is None:
        raise ValueError("could not read callgrind's dump: it has no total")
    return int(found[1])


def dumps(directory: Path) -> list[Path]:
    """The dumps at the marks, in order; that at the end of the process has no number."""
    return sorted(directory.glob("out.*"), key=lambda path: int(path.suffix[1:]))


def made_with() -> dict[str, str]:
    """What the counts depend on beside our code."""
    return {
        "python": " ".join(sys.version.split()),
        "libc": " ".join(platform.libc_ver()),
        "valgrind": _output("valgrind", "--version").strip(),
        "machine": platform.machine(),
    }


def _observed(directory: Path) -> list[str]:
    command = [
        "valgrind",
        "--tool=callgrind",
        f"--callgrind-out-file={directory}/out",
        "--dump-before=ctermid",
        sys.executable,
        "-S",  # nothing but our own modules is needed, and each import takes seconds here
        "-m",
        "tests.gate.hot",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONHASHSEED": "0",
        "GATE_DIRECTORY": str(directory),
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"could not count instructions: {done.stderr[-2000:]}")
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def _total(path: Path) -> int:
    return total_of(path.read_text())


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
