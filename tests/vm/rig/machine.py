"""One machine from power-on to its payload's status."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.vm.rig import disk
from tests.vm.rig.command import RigError
from tests.vm.rig.kernel import Kernel

STARTED = "payload started"
STATUS_FILE = ".status"
# What the guest needs after its own limit on the payload to bring the results home.
GRACE_S = 45
CONSOLE_TAIL = 15


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware, and how long it may take.

    One boot in about a hundred hangs in software emulation, so a boot is tried `boots` times.
    `payload_s` bounds the payload, which runs once whatever happens.
    """

    # One thread for all CPUs: with one each, QEMU 7.2 now and then runs a breakpoint that the
    # kernel had put into its own code, as tracepoints do, and taken out again: it panics.
    accelerator: str = "tcg,thread=single,tb-size=512"
    # The oldest model that NumPy's x86-64-v2 wheels run on: less to emulate.
    cpu: str = "Nehalem"
    cpus: int = 2
    memory_mib: int = 2048
    boot_s: float = 150
    boots: int = 3
    payload_s: int = 600


@dataclass(frozen=True, slots=True)
class Disks:
    """The files behind the guest's disks besides the kernel's modules."""

    root: Path
    payload: Path
    results: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a payload ended: its exit status (124 when it ran past its limit), and the seconds."""

    status: int
    boot_s: float
    run_s: float


def kernel_arguments(payload_s: int) -> str:
    """Return the kernel command line; `payload_s` reaches the guest's payload runner with it."""
    return " ".join(
        (
            "console=ttyS0",
            "quiet",
            # A panic ends the machine at once instead of waiting for the bound.
            "panic=-1",
            "psi=1",
            "random.trust_cpu=on",
            # Costly in emulation, and nothing there is worth protecting.
            "mitigations=off",
            "nokaslr",
            # Emulated time jumps, and the watchdog would give up the clock source for it.
            "tsc=reliable",
            "systemd.show_status=false",
            f"rig.limit={payload_s}",
        )
    )


def command(machine: Machine, kernel: Kernel, disks: Disks, console: Path) -> list[str]:
    """Return the QEMU command line: no network, no display, the console in a file.

    The root disk is written to a copy that QEMU drops at its end. Disks go by their serials.
    """
    drives = (
        ("root", disks.root, "snapshot=on"),
        ("modules", kernel.modules, "readonly=on"),
        ("payload", disks.payload, "readonly=on"),
        ("results", disks.results, "cache=unsafe"),
    )
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"]
    argv += ["-display", "none", "-serial", f"file:{console}"]
    argv += ["-machine", "pc", "-accel", machine.accelerator, "-cpu", machine.cpu]
    argv += ["-smp", str(machine.cpus), "-m", f"{machine.memory_mib}M"]
    argv += ["-device", "virtio-rng-pci"]
    argv += ["-kernel", str(kernel.image), "-initrd", str(kernel.initrd)]
    argv += ["-append", kernel_arguments(machine.payload_s)]
    for name, path, option in drives:
        # A comma in a path would end it: QEMU wants it doubled.
        escaped = str(path).replace(",", ",,")
        argv += ["-drive", f"id={name},if=none,format=raw,file={escaped},{option}"]
        argv += ["-device", f"virtio-blk-pci,drive={name},serial={name}"]
    return argv


def run(
    machine: Machine,
    kernel: Kernel,
    disks: Disks,
    into: Path,
    notice: Callable[[str], None],
) -> Outcome:
    """Boot, let the payload run, and bring its results into `into`, with the console beside them.

    QEMU is gone when this returns or raises, and dies with this process. Raises RigError when no
    boot reached the payload, or when the payload's status did not come back.
    """
    console, complaints = into / "console.log", into / "qemu.log"
    for attempt in range(1, machine.boots + 1):
        disk.blank(disks.results)
        console.write_text("")
        began = time.monotonic()
        with (
            complaints.open("w") as stderr,
            subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command(machine, kernel, disks, console)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            ) as qemu,
        ):
            try:
                if _started(qemu, console, began + machine.boot_s):
                    started = time.monotonic()
                    _ended(qemu, machine.payload_s + GRACE_S)
                    status = _status(disks.results, into, console)
                    return Outcome(status, started - began, time.monotonic() - started)
            finally:
                qemu.kill()
        said = " ".join(complaints.read_text(errors="replace").split())
        notice(f"boot {attempt} of {machine.boots} did not reach the payload {said}".rstrip())
    raise RigError(f"{kernel.release} did not boot: {_tail(console)}")


def _started(qemu: subprocess.Popen[bytes], console: Path, until: float) -> bool:
    while time.monotonic() < until:
        over = qemu.poll() is not None
        if STARTED in console.read_text(errors="replace"):
            return True
        if over:
            return False
        time.sleep(0.2)
    return False


def _ended(qemu: subprocess.Popen[bytes], limit_s: float) -> None:
    try:
        qemu.wait(limit_s)
    except subprocess.TimeoutExpired:
        # The guest's own limit did not work: it hangs. What it wrote so far is still looked at.
        qemu.kill()
        qemu.wait()


def _status(results: Path, into: Path, console: Path) -> int:
    disk.unpack(results, into)
    try:
        return int((into / STATUS_FILE).read_text())
    except (OSError, ValueError):
        raise RigError(f"the payload's status did not come back: {_tail(console)}") from None


def _tail(console: Path) -> str:
    lines = console.read_text(errors="replace").strip().splitlines()
    return "\n".join(["the console ends with", *lines[-CONSOLE_TAIL:]])
