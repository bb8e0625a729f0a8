"""The kernel's own cgroup v2 CPU limits do what the limits of the project rest upon."""

import time

import pytest

from tests.vm.guest.conftest import Burn, MakeCgroup, cpu_stat, wait_until


def test_a_new_cgroup_has_the_default_weight_and_no_quota(make_cgroup: MakeCgroup) -> None:
    group = make_cgroup("fresh")
    assert (group / "cpu.weight").read_text() == "100\n"
    assert (group / "cpu.max").read_text() == "max 100000\n"


@pytest.mark.parametrize(
    ("file", "written", "read"),
    [
        ("cpu.weight", "1", "1\n"),
        ("cpu.weight", "10000", "10000\n"),
        ("cpu.max", "25000", "25000 100000\n"),
        ("cpu.max", "25000 50000", "25000 50000\n"),
        ("cpu.max", "max", "max 100000\n"),
    ],
)
def test_a_limit_reads_back_as_written(
    make_cgroup: MakeCgroup, file: str, written: str, read: str
) -> None:
    path = make_cgroup("fresh") / file
    path.write_text(written)
    assert path.read_text() == read


@pytest.mark.parametrize(
    ("file", "text"), [("cpu.weight", "0"), ("cpu.weight", "10001"), ("cpu.max", "500 100000")]
)
def test_a_limit_out_of_range_is_refused(make_cgroup: MakeCgroup, file: str, text: str) -> None:
    path = make_cgroup("fresh") / file
    before = path.read_text()
    with pytest.raises(OSError, match=r"Invalid argument|Numerical result out of range"):
        path.write_text(text)
    assert path.read_text() == before


def test_a_quota_throttles(make_cgroup: MakeCgroup, burn: Burn) -> None:
    group = make_cgroup("held")
    burn(group)
    assert cpu_stat(group)["throttled_usec"] == 0
    (group / "cpu.max").write_text("10000 100000")
    wait_until(lambda: cpu_stat(group)["nr_throttled"] > 5, "throttled periods")
    wait_until(lambda: cpu_stat(group)["throttled_usec"] > 0, "throttled time")


def test_weight_shares_a_cpu(make_cgroup: MakeCgroup, burn: Burn) -> None:
    light, heavy = make_cgroup("light"), make_cgroup("heavy")
    (heavy / "cpu.weight").write_text("1000")
    burn(light)
    burn(heavy)
    before = {group: cpu_stat(group)["usage_usec"] for group in (light, heavy)}
    time.sleep(5)
    used = {group: cpu_stat(group)["usage_usec"] - before[group] for group in before}
    # Ten to one by weight; emulation is coarse, so this asks for no more than a clear difference.
    assert used[heavy] > 3 * used[light] > 0
