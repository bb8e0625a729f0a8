"""Very many processes that do a little, each in a cgroup of its own.

Run as `sleepers.py COUNT DIRECTORY…`, the directories of one cgroup in each hierarchy. Writes
"ready", waits for a line, forks; each child moves into a cgroup below and wakes once a second.
Writes the children's process ids as JSON, and ends them with itself.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1


def child(directories: list[Path]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for directory in directories:
        (directory / "cgroup.procs").write_text(str(os.getpid()))
    while True:
        time.sleep(1.0)


def main() -> None:
    count, tops = int(sys.argv[1]), [Path(each) for each in sys.argv[2:]]
    print("ready", flush=True)
    sys.stdin.readline()
    pids = []
    for number in range(count):
        pid = os.fork()
        if not pid:
            child([top / f"c{number}" for top in tops])
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
