import subprocess
from pathlib import Path

import pytest

from controller.limits.cgroup import Group
from controller.pressure import (
    Places,
    Pressure,
    PressureReader,
    parse_figures,
    parse_psi,
    places_of,
)

PSI = """some avg10=0.00 avg60=0.11 avg300=0.27 total=43777307
full avg10=0.00 avg60=0.00 avg300=0.00 total=19935378
"""
V1 = """30 29 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_pressure_is_the_totals_of_both_lines() -> None:
    some, full = PSI.splitlines()
    assert parse_psi(PSI) == (43_777_307_000, 19_935_378_000)
    assert parse_psi(some) == (43_777_307_000, 0)
    assert parse_psi(full) == (0, 19_935_378_000)


@pytest.mark.parametrize("text", ["", "all avg10=0.00 total=5\n", "some avg10=0.00\n"])
def test_a_file_without_totals_has_none(text: str) -> None:
    assert parse_psi(text) == (0, 0)


def test_figures_are_the_lines_that_have_one() -> None:
    text = "usage_usec 12\noom_kill_disable 0\nodd line here\nmax\nneg -1\n"
    assert parse_figures(text) == {"usage_usec": 12, "oom_kill_disable": 0}


def test_with_v1_controllers_memory_has_a_place_of_its_own() -> None:
    membership = "5:memory:/pod/a\n4:cpu,cpuacct:/b\n0::/c\n"
    assert places_of(V1, membership) == Places(
        Path("/sys/fs/cgroup/unified/c"), Path("/sys/fs/cgroup/memory/pod/a")
    )


def test_with_v2_alone_both_are_one() -> None:
    place = Path("/sys/fs/cgroup/c")
    assert places_of(V2, "0::/c\n") == Places(place, place)


@pytest.mark.parametrize(
    ("mountinfo", "membership"), [(V2, "0::/\n"), (V1, "5:memory:/\n0::/\n"), ("", "0::/c\n")]
)
def test_what_is_everybodys_or_not_mounted_is_nobodys(mountinfo: str, membership: str) -> None:
    assert places_of(mountinfo, membership) == Places(None, None)


def test_memory_in_v1s_root_is_not_looked_for_in_v2() -> None:
    assert places_of(V1, "5:memory:/\n0::/c\n").memory is None


def group_of(directory: Path, pid: int | None) -> Group:
    (directory / "cgroup.procs").write_text("" if pid is None else f"{pid}\n")
    return Group("/x", directory, 1, 1)


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_a_group_without_a_process_has_no_figures(tmp_path: Path, pid: int | None) -> None:
    reader = PressureReader(group_of(tmp_path, pid))
    assert reader.read() == Pressure()
    assert reader.used_ns() is None
    reader.close()


def test_a_group_that_is_gone_has_no_figures(tmp_path: Path) -> None:
    reader = PressureReader(Group("/x", tmp_path / "gone", 2, 1))
    assert reader.read() == Pressure()
    reader.close()


def _open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = _open_files()
    with subprocess.Popen(["sleep", "60"]) as process:
        reader = PressureReader(group_of(tmp_path, process.pid))
        reader.read()
        reader.close()
        process.kill()
    assert _open_files() <= before
