from pathlib import Path

import pytest

from controller.memory_reader import (
    Directory,
    MemoryReader,
    memory_groups,
    parse_limit,
    parse_meminfo,
)

V1 = """30 29 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_a_process_counts_against_its_group_and_all_above_but_the_root() -> None:
    root = Path("/sys/fs/cgroup")
    assert memory_groups(V2, "0::/pods/a/engine\n") == (
        Directory("/pods/a/engine", root / "pods/a/engine", 2),
        Directory("/pods/a", root / "pods/a", 2),
        Directory("/pods", root / "pods", 2),
    )


def test_the_v1_hierarchy_has_it_where_there_is_one() -> None:
    (group,) = memory_groups(V1, "5:memory:/engine\n0::/elsewhere\n")
    assert group == Directory("/engine", Path("/sys/fs/cgroup/memory/engine"), 1)


@pytest.mark.parametrize("membership", ["0::/\n", "", "garbage"])
def test_the_root_group_is_nobodys(membership: str) -> None:
    assert memory_groups(V2, membership) == ()


def test_limits_are_numbers_and_v1_has_one_that_means_none() -> None:
    assert parse_limit("1048576\n") == 1 << 20
    for text in ("max\n", "9223372036854771712\n", "", "-1"):
        assert parse_limit(text) is None


def test_the_machine_has_what_meminfo_says() -> None:
    text = "MemTotal:       16384 kB\nMemFree:  10 kB\nMemAvailable:    8192 kB\nHuge: 1\n"
    assert parse_meminfo(text) == (16 << 20, 8 << 20)
    assert parse_meminfo("MemTotal: 5 kB\n") is None
    assert parse_meminfo("MemTotal: x kB\nMemAvailable: 7 kB\n") is None


def test_without_a_group_only_the_machine_is_looked_at_with_one_read() -> None:
    reader = MemoryReader(None)
    reading = reader.read()
    reader.close()
    (machine,) = reading.levels
    assert machine.path == ""
    assert 0 < machine.used < machine.limit
    assert reader.reads == 1


def test_a_meminfo_that_is_not_there_is_no_bound(tmp_path: Path) -> None:
    assert MemoryReader(None, tmp_path / "none").read().levels == ()
