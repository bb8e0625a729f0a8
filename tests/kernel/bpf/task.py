"""A task for the scheduler: `task.py WHAT`, where WHAT is one of

    burn              work for ever
    burn CPU_MS       work for so long
    wake TIMES        sleep a millisecond and work a little, so often
    write PATH TIMES  the same, and write a byte each time, which wakes who reads
    read PATH         read byte by byte to the end
    fork TIMES        start so many processes that end at once; writes how often they came on a CPU

Writes "ready", waits for a line, works, and (but for the endless burn) writes "done". Then it
blocks until its input ends.
"""

import os
import sys
import time
from pathlib import Path


def burn_forever() -> None:
    while True:
        pass


def burn(cpu_ns: int) -> None:
    end = time.process_time_ns() + cpu_ns
    while time.process_time_ns() < end:
        pass


def wake(times: int) -> None:
    for _ in range(times):
        time.sleep(0.001)
        sum(range(1_000))


def write(path: str, times: int) -> None:
    with Path(path).open("wb", buffering=0) as file:
        for _ in range(times):
            wake(1)
            file.write(b".")


def read(path: str) -> None:
    with Path(path).open("rb", buffering=0) as file:
        while file.read(1):
            pass


def fork(times: int) -> int:
    turns = 0
    for _ in range(times):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        turns += int(Path(f"/proc/{pid}/schedstat").read_text().split()[2])
        os.waitpid(pid, 0)
    return turns


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    match sys.argv[1:]:
        case ["burn"]:
            burn_forever()
        case ["burn", cpu_ms]:
            burn(int(cpu_ms) * 1_000_000)
        case ["wake", times]:
            wake(int(times))
        case ["write", path, times]:
            write(path, int(times))
        case ["read", path]:
            read(path)
        case ["fork", times]:
            print(fork(int(times)), flush=True)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
