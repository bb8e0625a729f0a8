"""Run the tests in tests/vm/guest on Debian's kernels, a few machines at a time.

`python -m tests.vm.run --help` says how; README.md beside this file says what happens.
"""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from tests.vm import payload, report
from tests.vm.rig import apt, bcc, cache, disk, image, kernel, machine
from tests.vm.rig.command import RigError
from tests.vm.side_by_side import side_by_side

BCC_SERIES = "6.1"
"""The guest's own release: bcc of the same release compiles for it."""

PROJECT = Path(__file__).resolve().parents[2]
HOST_PACKAGES = (
    "busybox-static",
    "e2fsprogs",
    "kmod",
    "mmdebstrap",
    "qemu-system-x86",
    "util-linux",
    "zstd",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Test every kernel asked for; return 0 when all passed, 1 when not, 2 when none could run."""
    options = parse(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        apt.install(HOST_PACKAGES)
        with cache.hold(options.cache) as held:
            reports = test(held, options)
    except RigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    whole = report.total(reports)
    print(whole.counts)
    return 1 if whole.failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.run", description=__doc__)
    parser.add_argument(
        "--kernels",
        type=kernel_series,
        default=list(kernel.SUITES),
        metavar="LIST",
        help=f"which kernels, with commas between (default: {','.join(kernel.SUITES)})",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=PROJECT / "build/vm",
        help="where each kernel's results go (default: build/vm)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=cache.default_root(),
        help="where the image and the kernels are kept (default: $SITS_CACHE/vm)",
    )
    parser.add_argument(
        "--limit", type=int, default=3000, metavar="S", help="seconds for the tests"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=2,
        metavar="N",
        help="machines at a time; each takes a core and 2 GiB (default: 2)",
    )
    parser.add_argument(
        "--bcc",
        action="store_true",
        help=f"bring bcc and the headers of kernel {BCC_SERIES} along, for the tests of its tier",
    )
    parser.add_argument("--refresh", action="store_true", help="look for newer kernels now")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest in the guest, after --")
    return parser.parse_args(argv)


def kernel_series(text: str) -> list[str]:
    """Read a list of kernel series with commas between; raises ArgumentTypeError on an unknown."""
    series = [name.strip() for name in text.split(",")]
    if unknown := [name for name in series if name not in kernel.SUITES]:
        allowed = ", ".join(kernel.SUITES)
        raise argparse.ArgumentTypeError(f"no kernel '{unknown[0]}', there are {allowed}")
    return series


def test(held: cache.Cache, options: argparse.Namespace) -> list[report.Report]:
    """Run the tests on each kernel and print a line and the remarks for each."""
    say("packing the project")
    packed = held.scratch()
    payload.pack(PROJECT, packed, options.pytest)
    if options.bcc and BCC_SERIES in options.kernels:
        say("bcc and its headers")
        own = kernel.fetch(held, BCC_SERIES, refresh=options.refresh, notice=say)
        shutil.copytree(bcc.fetch(held, own), packed / "bcc", symlinks=True)
    disk.ext4(packed, held.work / "payload.ext4")
    say("the Debian image")
    root = image.fetch(held)
    reports: dict[str, report.Report] = {}
    boots = []
    for series in options.kernels:
        results = options.results / series
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir(parents=True)
        try:
            subject = kernel.fetch(held, series, refresh=options.refresh, notice=say)
        except RigError as error:
            reports[series] = tell(series, report.failure(f"kernel {series}: {error}"))
            continue
        parts = machine.Disks(root, held.work / "payload.ext4", held.scratch() / "results.raw")
        hardware = machine.Machine(payload_s=options.limit)
        boots.append(partial(boot, hardware, series, subject, parts, results))
    for series, one, times in side_by_side(boots, options.at_once):
        reports[series] = tell(series, one, times)
    return list(reports.values())


def boot(
    hardware: machine.Machine,
    series: str,
    subject: kernel.Kernel,
    parts: machine.Disks,
    results: Path,
) -> tuple[str, report.Report, str]:
    """Run one machine; returns the kernel's series, its report, and where and how long it ran."""
    say(f"booting {subject.release}")
    try:
        outcome = machine.run(hardware, subject, parts, results, say)
    except RigError as error:
        return series, report.failure(f"kernel {series}: {error}"), ""
    times = f" on {subject.release} (boot {outcome.boot_s:.0f} s, tests {outcome.run_s:.0f} s)"
    return series, report.of_payload(outcome.status, results), times


def tell(series: str, one: report.Report, times: str = "") -> report.Report:
    """Print how it went on one kernel; returns the report."""
    print(f"{series}: {one.counts}{times}", *one.remarks, sep="\n  ", flush=True)
    return one


def say(what: str) -> None:
    """Report progress on standard error, with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:4.0f} s] {what}", file=sys.stderr, flush=True)


def _leave(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that the machine and the scratch files go on the way out.
    raise SystemExit(128 + number)


BEGAN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
