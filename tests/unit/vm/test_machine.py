from itertools import pairwise
from pathlib import Path

import pytest

from tests.vm.rig.kernel import Kernel
from tests.vm.rig.machine import Disks, Machine, command, kernel_arguments

KERNEL = Kernel("6.1", Path("/k"))
DISKS = Disks(Path("/root.ext4"), Path("/payload.ext4"), Path("/results.raw"))


def options(argv: list[str], name: str) -> list[str]:
    """Return the values that follow each occurrence of an option."""
    return [value for option, value in pairwise(argv) if option == name]


def drive(argv: list[str], name: str) -> set[str]:
    """Return the settings of the drive with an id."""
    (found,) = (set(d.split(",")) for d in options(argv, "-drive") if f"id={name}" in d.split(","))
    return found


def test_the_guest_finds_each_disk_by_its_serial() -> None:
    devices = options(command(Machine(), KERNEL, DISKS, Path("/console")), "-device")
    for name in ("root", "modules", "payload", "results"):
        assert f"virtio-blk-pci,drive={name},serial={name}" in devices


def test_only_the_results_disk_is_written() -> None:
    argv = command(Machine(), KERNEL, DISKS, Path("/console"))
    assert "snapshot=on" in drive(argv, "root")
    assert "readonly=on" in drive(argv, "modules")
    assert "readonly=on" in drive(argv, "payload")
    assert not {"readonly=on", "snapshot=on"} & drive(argv, "results")


def test_the_machine_has_no_network_and_no_display() -> None:
    argv = command(Machine(), KERNEL, DISKS, Path("/console"))
    assert "-nodefaults" in argv
    assert options(argv, "-display") == ["none"]
    assert not any(option.startswith("-net") for option in argv)


def test_a_comma_in_a_path_does_not_end_it() -> None:
    disks = Disks(Path("/a,b/root"), DISKS.payload, DISKS.results)
    drives = options(command(Machine(), KERNEL, disks, Path("/console")), "-drive")
    assert any("file=/a,,b/root,snapshot=on" in text for text in drives)


@pytest.mark.parametrize("limit", [1, 300])
def test_the_guest_learns_the_payloads_limit(limit: int) -> None:
    assert f"rig.limit={limit}" in kernel_arguments(limit).split()
