"""The machine is what the other tests take for granted."""

import os
from pathlib import Path


def test_systemd_is_the_first_process() -> None:
    assert Path("/proc/1/comm").read_text() == "systemd\n"


def test_tests_run_as_root() -> None:
    assert os.geteuid() == 0


def test_cgroup_v2_is_the_only_hierarchy() -> None:
    mounted = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    assert [at for at, kind in mounted if kind == "cgroup2"] == ["/sys/fs/cgroup"]
    assert [at for at, kind in mounted if kind == "cgroup"] == []


def test_kernel_describes_its_own_types() -> None:
    assert Path("/sys/kernel/btf/vmlinux").stat().st_size > 1_000_000


def test_bpf_file_system_is_mounted() -> None:
    assert "/sys/fs/bpf bpf " in Path("/proc/mounts").read_text()
