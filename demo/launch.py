"""Becomes another command, after entering cgroups, taking cores and tying its life to a parent's.

Run as a script by path; needs the standard library only, so that it starts at once.
"""

import argparse
import ctypes
import os
import sys
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""prctl(2): the signal this process gets when its parent dies. It outlives exec."""


def main() -> None:
    """Do what the command line says, then exec the command after `--`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="end when this process ends")
    parser.add_argument("--signal", type=int, required=True, help="the signal to end by")
    parser.add_argument("--cpus", required=True, help="cores, with commas")
    parser.add_argument("--procs", action="append", default=[], help="a cgroup.procs file to enter")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, options.signal, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "could not follow the parent's death")
    if os.getppid() != options.parent:
        sys.exit("the parent is gone already")
    for procs in options.procs:
        Path(procs).write_text(str(os.getpid()))
    os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
