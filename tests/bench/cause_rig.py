"""The machine of the cause matrix: engine and neighbours on one core, sitsd and clients on another.

Everything is the real thing; all of it is gone at the end. What else runs on the machine has next
to no weight beside it.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from agent.client import AgentClient, ClientError
from bpf.libbpf import BPF_CGROUP_INET_INGRESS, Libbpf, Object
from controller.limits.cgroup import Group, cgroup_mounts, cpu_group, read_membership
from controller.limits.cpu import write_quota
from demo.rig import Rig, RigError
from demo.stage import free_port

from .cause_clients import Clients

NAME: Final = "sits-causes"
ENGINE: Final = "engine"
GROUP_OF_CLIENTS: Final = "agent"
READY_S: Final = 30.0
DROPPER: Final = Path(__file__).with_name("dropper.bpf.c")
# every array of a step from this size on is memory that the cgroup is charged for anew, as it is
# with allocators that give memory back
EXACT_ALLOCATION: Final = ("MALLOC_MMAP_THRESHOLD_=65536", "MALLOC_TRIM_THRESHOLD_=65536")
HOG: Final = "m = b'x' * (1 << 30)"


class CauseRig:
    """A context: inside it an engine serves, clients stream from it and sitsd watches both."""

    def __init__(self, gap_ms: float, ttft_ms: float, seed: int) -> None:
        self._slo = f"{{ ttft_ms = {ttft_ms}, gap_ms = {gap_ms} }}"
        self._seed = seed
        self._stack = ExitStack()
        self.rig: Rig
        self.clients: Clients
        self.api: AgentClient
        self._engine: subprocess.Popen[bytes]
        self._port = free_port()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.rig = stack.enter_context(Rig(NAME))
            self._memory = stack.enter_context(_memory_group(self.rig))
            stack.enter_context(_inside(self.rig, GROUP_OF_CLIENTS))
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {self.rig.cores.client})
            self._start_engine()
            stack.callback(lambda: self.rig.stop(self._engine, signal.SIGKILL))
            daemon = self._start_sitsd()
            stack.callback(lambda: self.rig.stop(daemon))
            self.clients = Clients(self._port, self._seed)
            self.clients.start()
            stack.callback(self.clients.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def engine_pid(self) -> int:
        """The engine's process."""
        return self._engine.pid

    @property
    def group(self) -> Group:
        """The engine's group."""
        return cpu_group(self.rig.groups.hierarchies, self.rig.groups.path("engine"))

    def explain(self, seconds: float) -> dict[str, Any]:
        """What sitsd says about the last seconds."""
        return self.api.explain(ENGINE, seconds)

    @contextmanager
    def burning(self, count: int) -> Iterator[None]:
        """So many neighbours burn the engine's core, each in its cgroup of the engine's weight."""
        burn = ("sh", "-c", "while :; do :; done")
        started = [
            self.rig.start(name, burn, (self.rig.cores.engine,), self.rig.groups.procs(name))
            for name in self.rig.neighbour_names[:count]
        ]
        try:
            yield
        finally:
            for process in started:
                self.rig.stop(process, signal.SIGKILL)

    @contextmanager
    def quota(self, cores: float) -> Iterator[None]:
        """The engine's own group may use so much and no more."""
        write_quota(self.group, cores)
        try:
            yield
        finally:
            write_quota(self.group, None)

    @contextmanager
    def losing(self, share: float) -> Iterator[None]:
        """The network loses this share of the engine's packets with data."""
        lib = Libbpf()
        compiled = self.rig.run_dir / "dropper.bpf.o"
        if not compiled.exists():
            _compile(DROPPER, compiled)
        dropper = Object(lib, compiled)
        (mount,) = [m for m in (self.rig.groups.hierarchies.v2,) if m is not None]
        cgroup = os.open(mount.directory(self.rig.groups.path(GROUP_OF_CLIENTS)), os.O_RDONLY)
        try:
            dropper.set_constant("from_port", self._port)
            dropper.set_constant("lost_per_mille", round(share * 1000))
            dropper.load()
            program = lib.bpf_program__fd(dropper.programs()["lose"])
            link = lib.check(
                lib.bpf_link_create(program, cgroup, BPF_CGROUP_INET_INGRESS, None),
                "attach the dropper",
            )
            try:
                yield
            finally:
                os.close(link)
        finally:
            os.close(cgroup)
            dropper.close()

    @property
    def can_squeeze(self) -> bool:
        """Whether this machine lets us squeeze the engine's memory (cgroup v1)."""
        return self._memory is not None

    @contextmanager
    def out_of_memory(self, spare_bytes: int) -> Iterator[None]:
        """Something beside the engine takes all that the memory limit of its group leaves.

        The group's OOM killer is off: who wants more memory waits.
        """
        assert self._memory is not None
        limit = self._memory / "memory.limit_in_bytes"
        used = int((self._memory / "memory.usage_in_bytes").read_text())
        (self._memory / "memory.oom_control").write_text("1")
        limit.write_text(str(used + spare_bytes))
        hog = self.rig.start(
            "hog",
            (sys.executable, "-c", HOG),
            (self.rig.cores.client,),
            (self._memory / "cgroup.procs",),
        )
        try:
            yield
        finally:
            # first room, or what waits for memory can't even be killed
            limit.write_text("-1")
            self.rig.stop(hog, signal.SIGKILL)
            (self._memory / "memory.oom_control").write_text("0")

    def _start_engine(self) -> None:
        command = ["env", *EXACT_ALLOCATION, sys.executable, "-c"]
        command += ["from controller.reference.server import main; main()"]
        command += [f"--port={self._port}", f"--admin-socket={self.rig.run_dir / 'engine.sock'}"]
        command += [f"--page={self.rig.run_dir / 'engine.page'}"]
        procs = self.rig.groups.procs("engine")
        if self._memory is not None:
            procs = (*procs, self._memory / "cgroup.procs")
        self._engine = self.rig.start("engine", command, (self.rig.cores.engine,), procs)
        until = time.monotonic() + READY_S
        while b"serving" not in self.rig.log("engine").read_bytes():
            if self._engine.poll() is not None or time.monotonic() > until:
                raise RigError(f"the engine does not serve:\n{self.rig.failure('engine')}")
            time.sleep(0.05)

    def _start_sitsd(self) -> subprocess.Popen[bytes]:
        policy = self.rig.run_dir / "policy.toml"
        policy.write_text(self._policy())
        command = [sys.executable, "-c", "from agent.sitsd import main; main()"]
        daemon = self.rig.start(
            "sitsd",
            [*command, "--policy", str(policy)],
            (self.rig.cores.client,),
            self.rig.groups.procs(GROUP_OF_CLIENTS),
        )
        self.api = AgentClient(self.rig.run_dir / "admin.sock")
        until = time.monotonic() + READY_S
        while not self._follows():
            if daemon.poll() is not None or time.monotonic() > until:
                raise RigError(f"sitsd does not follow:\n{self.rig.failure('sitsd')}")
            time.sleep(0.1)
        return daemon

    def _follows(self) -> bool:
        try:
            status = self.api.status()
        except ClientError:
            return False
        (engine,) = status["engines"]
        streams: bool = status["kernel"]["follows_streams"]
        return streams and engine["ports"] and engine["admin"]["state"] == "connected"

    def _policy(self) -> str:
        run = self.rig.run_dir
        lines = [
            'mode = "observe"',
            "[agent]",
            f'metrics_address = "127.0.0.1:{free_port()}"',
            f'admin_socket = "{run / "admin.sock"}"',
            f'run_dir = "{run / "sits"}"',
            f'state_dir = "{run / "state"}"',
            f'pin_dir = "{self.rig.pin_dir}"',
            f"[engines.{ENGINE}]",
            f'cgroup = "{self.rig.groups.path("engine")}"',
            f'admin_socket = "{run / "engine.sock"}"',
            f"slo = {self._slo}",
        ]
        for name in self.rig.neighbour_names:
            lines += [f"[neighbours.{name}]", f'cgroup = "{self.rig.groups.path(name)}"']
        return "\n".join(lines) + "\n"


@contextmanager
def _memory_group(rig: Rig) -> Iterator[Path | None]:
    """The engine's group in the v1 memory hierarchy; None where there is no such hierarchy."""
    mounts = cgroup_mounts(Path("/proc/self/mountinfo").read_text())
    found = [mount for kind, mount, names in mounts if kind == "cgroup" and "memory" in names]
    if not found:
        yield None
        return
    directory = found[0].directory(f"{found[0].root.rstrip('/')}/{NAME}")
    directory.mkdir(exist_ok=True)
    try:
        yield directory
    finally:
        until = time.monotonic() + 5
        while directory.exists():
            try:
                directory.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    raise
                time.sleep(0.05)


@contextmanager
def _inside(rig: Rig, name: str) -> Iterator[None]:
    """This process is in this group meanwhile, and its sockets from then on."""
    hierarchies, before = rig.groups.hierarchies, read_membership(os.getpid())
    places = ((hierarchies.v1_cpu, before.v1_cpu), (hierarchies.v2, before.v2))
    for file in rig.groups.procs(name):
        file.write_text(str(os.getpid()))
    try:
        yield
    finally:
        for mount, path in places:
            if mount is not None and path is not None:
                (mount.directory(path) / "cgroup.procs").write_text(str(os.getpid()))


def _compile(source: Path, into: Path) -> None:
    include = f"/usr/include/{os.uname().machine}-linux-gnu"
    subprocess.run(
        [
            "clang",
            "-g",
            "-O2",
            "-target",
            "bpf",
            f"-I{include}",
            "-c",
            str(source),
            "-o",
            str(into),
        ],
        check=True,
    )
