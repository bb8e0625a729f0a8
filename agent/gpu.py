"""What the agent knows of the GPUs: a process looks, and here is heard what it says.

No call here can wait for a driver. One that hangs leaves the looking process where it is; that is
killed, which the kernel may put off for as long as the driver hangs, and no other is started
before it is gone.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.gpu_heat import OTHERS, WHOLE, HeatMaps
from agent.gpu_model import (
    FAILED,
    HUNG,
    NO_DRIVER,
    NONE,
    OFF,
    OK,
    Device,
    GpuProcess,
    Look,
    look_of,
)

HUNG_AFTER_S: Final = 5.0
HUNG_LOOKS: Final = 4
"""Silence of so many looks, and of so many seconds, is a driver that hangs."""

AGAIN_S: Final[Mapping[str, float]] = {
    NONE: 300.0,
    NO_DRIVER: 30.0,
    FAILED: 10.0,
    HUNG: 30.0,
    OK: 1.0,
}
"""How long until somebody looks again, by what was said last."""

MOST_BYTES: Final = 1 << 20
_PACKAGES: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is: the name of a target, with its kind, or None and what it is."""

    target: str | None
    kind: str
    command: str
    cgroup: str


NOBODY: Final = Owner(None, "", "", "")


class Gpus:
    """The looking process and what it said last. `tick` from one thread, the rest from any."""

    def __init__(
        self,
        interval_ms: int,
        owner_of: Callable[[int], Owner] = lambda _: NOBODY,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started before `tick`; an interval of 0 means that nobody looks.

        `owner_of` is asked for each process on a GPU. `environment` is that of the looking process,
        this one's by default.
        """
        self._every_s = interval_ms / 1e3
        self._owner_of = owner_of
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._heard_s = 0.0
        self._start_at_s = 0.0
        self._look = Look(OFF, "agent.gpu_interval_ms is 0") if not interval_ms else Look(NONE)
        self._owners: Mapping[int, Owner] = {}
        self._since_s = time.time()
        self.heat = HeatMaps()

    @property
    def look(self) -> Look:
        """What was seen last."""
        return self._look

    @property
    def owners(self) -> Mapping[int, Owner]:
        """Whose the processes in it are."""
        return self._owners

    def set_interval(self, interval_ms: int) -> None:
        """Look this often from now on."""
        if interval_ms / 1e3 == self._every_s:
            return
        self.stop()
        self._every_s, self._start_at_s = interval_ms / 1e3, 0.0
        self._look = Look(OFF, "agent.gpu_interval_ms is 0") if not interval_ms else Look(NONE)

    def tick(self) -> None:
        """Start who looks, hear what was said, notice that nothing is."""
        if not self._every_s:
            return
        now_s = time.monotonic()
        if self._process is None:
            if now_s >= self._start_at_s:
                self._start(now_s)
            return
        self._hear(now_s)
        code = self._process.poll()
        if code is not None:
            self._hear(now_s)
            self._ended(now_s, code)
        elif now_s - self._heard_s > max(HUNG_AFTER_S, HUNG_LOOKS * self._every_s):
            self._hangs(now_s)

    def status(self) -> dict[str, Any]:
        """The state, since when, and every device with its processes, for JSON."""
        look, owners = self._look, self._owners
        return {
            "state": look.state,
            "text": look.text,
            "detail": look.detail,
            "since_unix_s": self._since_s,
            "driver": look.driver,
            "devices": [_device(each, owners) for each in look.devices],
        }

    def answer(self) -> dict[str, Any]:
        """All of it, with the heat maps."""
        return self.status() | {"heat": self.heat.answer()}

    @property
    def problems(self) -> list[str]:
        """What is wrong with them; a machine without any is well."""
        look = self._look
        said = [f"the GPUs are not seen: {look.text}"] if look.state in {FAILED, HUNG} else []
        return said + [f"GPU {each.name}: {each.lost}" for each in look.devices if each.lost]

    def stop(self) -> None:
        """End who looks; one that a driver holds is left to the kernel."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
        self._close()

    def _start(self, now_s: float) -> None:
        command = [sys.executable, "-m", "agent.gpu_probe", str(self._every_s)]
        try:
            self._process = subprocess.Popen(
                command,
                cwd=_PACKAGES,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            self._set(Look(FAILED, f"could not start the process that looks: {error}"))
            self._start_at_s = now_s + AGAIN_S[FAILED]
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._heard_s, self._said = now_s, b""

    def _hear(self, now_s: float) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with suppress(BlockingIOError):
            while part := os.read(self._process.stdout.fileno(), MOST_BYTES):
                self._said += part
        *lines, self._said = self._said.split(b"\n")
        if lines:
            self._heard_s = now_s
            try:
                self._set(look_of(json.loads(lines[-1])))
            except (ValueError, TypeError, KeyError) as error:
                self._set(Look(FAILED, f"what was said of the GPUs can't be read: {error}"))

    def _set(self, look: Look) -> None:
        if look.state != self._look.state:
            self._since_s = time.time()
        owners = {each.pid: self._owner_of(each.pid) for d in look.devices for each in d.processes}
        self._owners, self._look = owners, look
        at_s = time.time()
        for device in look.devices:
            if not device.lost:
                self.heat.take(at_s, device.name, use_of(device, owners))
        self.heat.forget_old(at_s)

    def _hangs(self, now_s: float) -> None:
        assert self._process is not None
        self._process.kill()
        if self._look.state != HUNG:
            silent_s = now_s - self._heard_s
            self._since_s = time.time() - silent_s
            since = time.strftime("%H:%M:%S", time.localtime(self._since_s))
            self._look = Look(HUNG, f"since {since}", self._look.driver)
            self._owners = {}

    def _ended(self, now_s: float, code: int) -> None:
        self._close()
        if self._look.state == OK and code:
            self._set(Look(FAILED, f"the process that looks ended with status {code}"))
        self._start_at_s = now_s + AGAIN_S[self._look.state]

    def _close(self) -> None:
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


def use_of(device: Device, owners: Mapping[int, Owner]) -> dict[str, float | None]:
    """How busy a device is, in percent: as a whole, and by whose processes are on it."""
    use: dict[str, float | None] = {WHOLE: device.sm_percent}
    for each in device.processes:
        owner = owners[each.pid]
        name = owner.target or owner.command or OTHERS
        if each.sm_percent is not None:
            use[name] = (use.get(name) or 0.0) + each.sm_percent
    return use


def _device(device: Device, owners: Mapping[int, Owner]) -> dict[str, Any]:
    names = (name for name in type(device).__slots__ if name not in {"instances", "processes"})
    return {name: getattr(device, name) for name in names} | {
        "instances": [
            {name: getattr(each, name) for name in type(each).__slots__}
            for each in device.instances
        ],
        "processes": [_process(each, owners.get(each.pid)) for each in device.processes],
    }


def _process(each: GpuProcess, owner: Owner | None) -> dict[str, Any]:
    return {
        "pid": each.pid,
        "memory_bytes": each.memory_bytes,
        "sm_percent": each.sm_percent,
        "instance": each.instance,
        "target": owner.target if owner is not None else None,
        "kind": owner.kind if owner is not None else "",
        "command": owner.command if owner is not None else "",
        "cgroup": owner.cgroup if owner is not None else "",
    }
