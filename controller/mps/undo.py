"""The undo files of MPS limits, one for each daemon the policy names, and their undoing.

`python -m controller.mps.undo --undo DIR` puts back what dead agents left: the guard runs it, and
`sitsd --undo` does the same. The agent itself does at its next start.
"""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from controller.kept_file import SUFFIX, KeptFile, UndoError
from controller.mps.control import Control, MpsError
from controller.mps.limit import parse_held, release

HOLDER: Final = "an agent that runs, or the control program it started,"

LOCK_WAIT_S: Final = 5.0
"""Longer than `PROGRAM_TIMEOUT_S`: a control program that a killed agent started has the lock."""


def undo_path(directory: Path, name: str) -> Path:
    """The undo file of the daemon that the policy calls `name`."""
    return directory / f"{name}{SUFFIX}"


def names_left(directory: Path) -> list[str]:
    """The daemons that there is something to undo of."""
    return sorted(path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))


def undo_left(file: KeptFile) -> str:
    """Put back what the file says; what was done, nothing if nothing was left.

    `MpsError` or `UndoError` if that can't be; the file stays for another time then.
    """
    held = file.load(parse_held)
    if held is None:
        return ""
    said = release(Control(Path(held.pipe_directory), (file.lock,)), held)
    file.clear()
    return said


def undo_all(directory: Path) -> Iterator[tuple[str, bool]]:
    """Put back what all files in `directory` say: what became of each, and if it is done.

    Nothing is done about one that is still seen to after `LOCK_WAIT_S`.
    """
    ends_s = time.monotonic() + LOCK_WAIT_S
    for name in names_left(directory):
        try:
            with closing(_locked(undo_path(directory, name), ends_s)) as file:
                yield f"MPS limit {name}: {undo_left(file) or 'nothing was left'}", True
        except (MpsError, UndoError) as error:
            yield f"MPS limit {name}: could not put it back: {error}", False


def main(arguments: Sequence[str]) -> int:
    """The command; 0 if nothing is left."""
    parser = ArgumentParser(prog="sits-mps-undo", description="Put MPS percentages back.")
    parser.add_argument("--undo", type=Path, required=True, help="the directory of undo files")
    lines = list(undo_all(parser.parse_args(arguments).undo))
    for line, _ in lines:
        print(line, flush=True)
    return 0 if all(done for _, done in lines) else 1


def _locked(path: Path, ends_s: float) -> KeptFile:
    while True:
        try:
            return KeptFile(path, HOLDER)
        except UndoError:
            if time.monotonic() >= ends_s:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
