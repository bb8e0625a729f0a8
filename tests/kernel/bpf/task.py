"""A task for the scheduler: `task.py burn`, `task.py burn CPU_MS` or `task.py wake TIMES`.

Writes "ready", waits for a line, works, and (but for the endless burn) writes "done". Then it
blocks until its input ends.
"""

import sys
import time


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


def main() -> None:
    kind, *amount = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    if not amount:
        burn_forever()
    if kind == "burn":
        burn(int(amount[0]) * 1_000_000)
    else:
        wake(int(amount[0]))
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
