"""The processes of the freeze tests: who supervises, who freezes, and what is frozen.

`agent UNDO_PATH PIDS_PATH COUNT_PATH CGROUP_PATH=BOUND_MS…` starts a guard and a controller, runs
the undo list and starts them again when they die, as the supervisor does. `controller UNDO_PATH
PIPE_FD …` freezes every group again and again, each for its bound, until its standard input ends.
`work LOG_PATH` sleeps half a millisecond at a time and writes a line for all that lasted longer:
the nanoseconds it was gone, less those that it could have run but had no CPU (the kernel's own
count). At real-time priority that is what a freeze took of it, and little else. `noise LOG_PATH`
does the same at the priority of agent and controller, less nothing: what the machine took of it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from controller.limits.cgroup import CgroupError, cpu_group, read_hierarchies
from controller.limits.guard import start_guard
from controller.limits.holds import Held
from controller.limits.limiter import Limiter
from controller.limits.undo import run_undo

NICE = -10
GUARD_TIMEOUT_MS = 700
PAUSE_NS = 20_000_000
GONE_NS = 5_000_000


def say(path: Path, pids: dict[str, int]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(pids))
    fresh.replace(path)


def agent(undo: Path, pids: Path, count: Path, groups: list[str]) -> None:
    run_undo(undo)
    while True:
        guard, pipe = start_guard(undo, GUARD_TIMEOUT_MS)
        while guard.poll() is None:
            controller = subprocess.Popen(
                (sys.executable, __file__, "controller", undo, str(pipe), count, *groups),
                stdin=subprocess.PIPE,
                pass_fds=(pipe,),
            )
            say(pids, {"agent": os.getpid(), "guard": guard.pid, "controller": controller.pid})
            while guard.poll() is None and controller.poll() is None:
                time.sleep(0.01)
            assert controller.stdin is not None
            controller.stdin.close()
            try:
                controller.wait(5)
            except subprocess.TimeoutExpired:
                controller.kill()
                controller.wait()
            run_undo(undo)
        os.close(pipe)


def controller(undo: Path, fd: int, count: Path, groups: list[str]) -> None:
    os.set_blocking(0, False)
    hierarchies = read_hierarchies()
    if os.environ.get("FREEZER") == "v1":
        hierarchies = type(hierarchies)(None, hierarchies.v1_cpu, v1_freezer=hierarchies.v1_freezer)
    limiter = Limiter(undo, fd, hierarchies=hierarchies)
    bounds = {path: int(bound) for path, _, bound in (each.partition("=") for each in groups)}
    at = {cpu_group(hierarchies, path): (bound, 0) for path, bound in bounds.items()}
    with count.open("a") as log:
        while not ended():
            now_ns = time.monotonic_ns()
            limiter.heartbeat(now_ns)
            with suppress(CgroupError):
                for thawed in limiter.thawed():
                    group = thawed.held.group
                    at[group] = (at[group][0], now_ns + PAUSE_NS)
            frozen = {held.group for held in limiter.held()}
            for group, (bound, after_ns) in at.items():
                if group in frozen or after_ns > now_ns:
                    continue
                with suppress(CgroupError):
                    if isinstance(limiter.freeze(group, bound, "rig"), Held):
                        log.write(f"{limiter.freezer_pid} {group.path}\n")
                        log.flush()
            time.sleep(0.003)
    limiter.release_all()
    limiter.close()


def ended() -> bool:
    with suppress(BlockingIOError):
        return os.read(0, 1) == b""
    return False


def be_controller() -> None:
    """At the controller's priority, whatever the tests run at."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, NICE)


def work(log: Path, real: bool) -> None:
    if real:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    schedstat = os.open("/proc/self/schedstat", os.O_RDONLY)
    with log.open("a") as lines:
        last_ns, last_wait_ns = time.monotonic_ns(), waited_ns(schedstat)
        while True:
            time.sleep(0.0005)
            now_ns = time.monotonic_ns()
            if now_ns - last_ns > GONE_NS:
                wait_ns = waited_ns(schedstat)
                less_ns = wait_ns - last_wait_ns if real else 0
                lines.write(f"{now_ns - last_ns - less_ns}\n")
                lines.flush()
                now_ns = time.monotonic_ns()
            last_ns, last_wait_ns = now_ns, waited_ns(schedstat)


def waited_ns(schedstat: int) -> int:
    """The time this process was ready to run and had no CPU (sched-stats in the kernel's docs)."""
    return int(os.pread(schedstat, 100, 0).split()[1])


def main() -> None:
    mode, *rest = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    be_controller()
    if mode == "agent":
        agent(Path(rest[0]), Path(rest[1]), Path(rest[2]), rest[3:])
    elif mode == "controller":
        controller(Path(rest[0]), int(rest[1]), Path(rest[2]), rest[3:])
    else:
        work(Path(rest[0]), real=mode == "work")


if __name__ == "__main__":
    main()
