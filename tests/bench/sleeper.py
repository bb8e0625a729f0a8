"""Threads that sleep a little and work a little: `sleeper.py THREADS TURNS POLICY`.

POLICY is `other`, whose threads may take the CPU from one that works as soon as they wake, or
`batch`, whose threads wait until its slice is over (sched(7)).

Writes "ready", waits for a line, works, writes "done" and blocks until its input ends.
"""

import os
import random
import sys
import threading
import time

POLICIES = {"other": os.SCHED_OTHER, "batch": os.SCHED_BATCH}


def turns(count: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        time.sleep(chance.uniform(0, 0.002))
        sum(range(chance.randint(0, 2_000)))


def main() -> None:
    threads, count = map(int, sys.argv[1:3])
    os.sched_setscheduler(0, POLICIES[sys.argv[3]], os.sched_param(0))
    print("ready", flush=True)
    sys.stdin.readline()
    workers = [threading.Thread(target=turns, args=(count, n)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
