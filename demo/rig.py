"""Everything the demonstration puts on the machine, and takes away again.

Engine and neighbours have one core, the client another, the agent what is left or the client's.
Processes die with the rig's own process; cgroups and files that a killed run left behind are
removed by the next. Mounts are in a namespace of their own.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from controller.limits.cgroup import CgroupError, read_hierarchies
from demo.groups import Groups
from demo.mounts import MountError, enter_private_namespace, mount, unmount

ROOT: Final = Path(__file__).parents[1]
LAUNCH: Final = Path(__file__).parent / "launch.py"
NEIGHBOURS: Final = 6
BURN: Final = ("sh", "-c", "while :; do :; done")
ENDS_WITHIN_S: Final = 5.0


class RigError(RuntimeError):
    """The machine can't be set up for the demonstration, or a process of it failed."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where. The client has a core that the engine never uses, if there are two."""

    engine: int
    client: int
    agent: tuple[int, ...]


def choose_cores(available: Collection[int]) -> Cores:
    """The layout for these cores."""
    first, *rest = sorted(available)
    if not rest:
        return Cores(first, first, (first,))
    *middle, last = rest
    return Cores(engine=last, client=first, agent=tuple(middle) or (first,))


class Rig:
    """A context: inside it the cgroups exist and processes can be started; after it nothing does.

    `name` is that of the cgroup and of the directory below `run_root`; one rig of a name at once.
    """

    def __init__(self, name: str = "sits-demo", run_root: Path = Path("/run")) -> None:
        self.cores = choose_cores(os.sched_getaffinity(0))
        self.neighbour_names = tuple(f"neighbour-{n}" for n in range(1, NEIGHBOURS + 1))
        self.run_dir = run_root / name
        self.pin_dir = self.run_dir / "bpf" / "sits"
        self.groups: Groups
        self._name = name
        self._processes: list[subprocess.Popen[bytes]] = []
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._set_up(stack)
            self._undo = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # a second Ctrl-C must not stop the cleaning up
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
        try:
            self._undo.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def log(self, name: str) -> Path:
        """Where the process started as `name` writes what it says."""
        return self.run_dir / f"{name}.log"

    def start(
        self,
        name: str,
        command: Sequence[str],
        cpus: Sequence[int],
        procs: Sequence[Path] = (),
        ends_by: signal.Signals = signal.SIGKILL,
    ) -> subprocess.Popen[bytes]:
        """Start a process in the cgroups behind `procs`; it gets `ends_by` if the rig dies."""
        launch = [sys.executable, "-S", str(LAUNCH), f"--parent={os.getpid()}"]
        launch += [f"--signal={ends_by.value}", f"--cpus={','.join(map(str, cpus))}"]
        launch += [f"--procs={file}" for file in procs]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*launch, "--", *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for us alone
            )
        self._processes.append(process)
        return process

    def start_neighbours(self) -> list[subprocess.Popen[bytes]]:
        """Start every neighbour, each in its own cgroup, on the engine's core."""
        return [
            self.start(name, BURN, (self.cores.engine,), self.groups.procs(name))
            for name in self.neighbour_names
        ]

    def stop(
        self,
        process: subprocess.Popen[bytes],
        by: signal.Signals = signal.SIGTERM,
        within_s: float = ENDS_WITHIN_S,
    ) -> None:
        """End a process and wait for it; SIGKILL when it does not end in time."""
        process.send_signal(by)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._processes.remove(process)

    def failure(self, name: str) -> str:
        """The last lines a process wrote, for a message."""
        lines = self.log(name).read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-8:]) or "it said nothing"

    def _set_up(self, stack: ExitStack) -> None:
        if os.geteuid():
            raise RigError("the demonstration needs root: it makes cgroups and loads BPF programs")
        stack.enter_context(_only_one(self._name))
        try:
            enter_private_namespace()
            if self.run_dir.exists():
                self._clear()
            self.run_dir.mkdir(mode=0o755)
            stack.callback(self._clear)
            mount("bpf", self.run_dir / "bpf")
            stack.callback(unmount, self.run_dir / "bpf")
            if read_hierarchies().v2 is None:
                mount("cgroup2", self.run_dir / "cgroup2")
                stack.callback(unmount, self.run_dir / "cgroup2")
            self.groups = self._groups()
            self.groups.remove()
            stack.callback(self.groups.remove)
            self.groups.make()
        except (CgroupError, MountError, OSError) as error:
            raise RigError(str(error)) from None
        stack.callback(self._stop_all)

    def _groups(self) -> Groups:
        names = ("engine", *self.neighbour_names, "agent")
        # beside the run directory: what has to be restored outlives a run that is killed
        restore = self.run_dir.with_name(f"{self._name}.restore")
        return Groups(read_hierarchies(), self._name, names, restore)

    def _stop_all(self) -> None:
        """The last started first: the agent undoes its limits before the engine goes."""
        for process in reversed(self._processes[:]):
            self.stop(process)

    def _clear(self) -> None:
        shutil.rmtree(self.run_dir)


_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _only_one(name: str) -> socket.socket:
    """Holds `name` for this process: an abstract socket, which leaves no file behind."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0{name}")
    except OSError:
        lock.close()
        raise RigError(f"another {name} runs on this machine: wait for it, or end it") from None
    return lock
