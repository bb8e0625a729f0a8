"""A process that holds limits, to be killed and stopped by the tests.

`holder.py MODE UNDO_PATH PIPE_FD CGROUP_PATH…`: `busy` changes them at random as fast as it can,
`steady` sets the first one's weight to 500 each tick; both beat. `killed` and `stopped` set it
once, and are killed or stopped between the record and the write; `stopped` is killed right after
its write. Writes 'r' when it is about to begin and then a line for all that it notices.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from controller.limits import cgroup, cpu, holds, limiter
from controller.limits.cgroup import Group
from controller.limits.change import Change


def busy(holder: limiter.Limiter, groups: list[Group]) -> None:
    while True:
        group = random.choice(groups)
        match random.randrange(6):
            case 0:
                holder.release(group)
            case 3 if cpu.can_be_idle(group):
                holder.set_weight(group, cpu.IDLE_WEIGHT, "busy")
            case 1 | 2:
                holder.set_weight(group, random.randrange(1, 10_001), "busy")
            case _:
                holder.set_quota(group, random.choice([0.1, 0.5, 0.9, None]), "busy")
        holder.heartbeat(time.monotonic_ns())


def steady(holder: limiter.Limiter, group: Group) -> None:
    while True:
        for each in holder.check():
            print(type(each).__name__, flush=True)
        holder.set_weight(group, 500, "steady")
        holder.heartbeat(time.monotonic_ns())
        time.sleep(0.02)


def killed(change: Change) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(change: Change) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    cpu.apply(change)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    mode, path, fd = sys.argv[1:4]
    hierarchies = cgroup.read_hierarchies()
    groups = [cgroup.cpu_group(hierarchies, each) for each in sys.argv[4:]]
    holder = limiter.Limiter(Path(path), int(fd))
    print("r", flush=True)
    if mode == "busy":
        busy(holder, groups)
    elif mode == "steady":
        steady(holder, groups[0])
    else:
        holder.set_weight(groups[0], 300, "first")
        setattr(holds, "apply", {"killed": killed, "stopped": stopped}[mode])  # noqa: B010
        holder.set_weight(groups[-1], 500, "second")


if __name__ == "__main__":
    main()
