import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.limits import cpu
from controller.limits.cgroup import CgroupError, Group, Hierarchies, Version, cpu_group
from controller.limits.change import Change
from controller.limits.cpu import Throttling

VERSIONS: list[Version] = [1, 2]
periods = st.integers(1_000, 1_000_000)


@pytest.fixture
def group(either: Hierarchies) -> Group:
    return cpu_group(either, "/engine")


def test_every_weight_comes_back_from_shares_as_it_was() -> None:
    assert all(cpu.weight_of(cpu.shares_of(weight)) == weight for weight in range(1, 10_001))


def test_the_default_weight_is_the_default_shares() -> None:
    assert (cpu.shares_of(100), cpu.weight_of(1024)) == (1024, 100)


@given(st.integers(2, 262_144))
def test_all_shares_the_kernel_can_hold_read_as_a_weight_in_range(shares: int) -> None:
    assert 1 <= cpu.weight_of(shares) <= 10_000


@given(st.integers(-(10**9), 10**9))
def test_shares_stay_inside_what_the_kernel_holds(weight: int) -> None:
    assert 2 <= cpu.shares_of(weight) <= 262_144


def test_a_fresh_group_has_the_default_weight_and_no_quota(group: Group) -> None:
    assert (cpu.read_weight(group), cpu.read_quota(group)) == (100, None)


@pytest.mark.parametrize("weight", [1, 2, 99, 101, 1_000, 10_000])
def test_a_weight_reads_back_as_written(group: Group, weight: int) -> None:
    cpu.write_weight(group, weight)
    assert cpu.read_weight(group) == weight


def test_where_no_group_can_be_idle_that_is_refused_and_says_since_when_it_can(
    group: Group,
) -> None:
    assert not cpu.can_be_idle(group)
    with pytest.raises(CgroupError, match=r"cannot be made idle: .* kernel 5\.15"):
        cpu.write_weight(group, 0)
    assert cpu.read_weight(group) == 100


@pytest.mark.parametrize("weight", [-1, 10_001])
def test_a_weight_out_of_range_is_refused_and_nothing_written(group: Group, weight: int) -> None:
    with pytest.raises(CgroupError, match=f"a weight is 1 to 10000, or 0 for idle, not {weight}"):
        cpu.write_weight(group, weight)
    assert cpu.read_weight(group) == 100


@pytest.mark.parametrize("cores", [0.01, 0.2, 1.0, 1.5, 64.0, None])
def test_a_quota_reads_back_as_written(group: Group, cores: float | None) -> None:
    cpu.write_quota(group, 0.5)
    cpu.write_quota(group, cores)
    assert cpu.read_quota(group) == cores


def test_a_quota_keeps_the_period_it_finds_under_v1(v1: Hierarchies) -> None:
    group = cpu_group(v1, "/engine")
    (group.directory / "cpu.cfs_period_us").write_text("50000\n")
    cpu.write_quota(group, 0.5)
    assert (group.directory / "cpu.cfs_quota_us").read_text() == "25000"
    assert (group.directory / "cpu.cfs_period_us").read_text() == "50000\n"


def test_a_quota_keeps_the_period_it_finds_under_v2(v2: Hierarchies) -> None:
    group = cpu_group(v2, "/engine")
    (group.directory / "cpu.max").write_text("max 50000\n")
    cpu.write_quota(group, 0.5)
    assert (group.directory / "cpu.max").read_text() == "25000 50000"
    cpu.write_quota(group, None)
    assert (group.directory / "cpu.max").read_text() == "max 50000"


@pytest.mark.parametrize("cores", [0.0, -1.0, math.nan, math.inf])
def test_a_quota_that_is_no_number_of_cores_is_refused(group: Group, cores: float) -> None:
    with pytest.raises(CgroupError, match="a quota is a number of cores above 0"):
        cpu.write_quota(group, cores)
    assert cpu.read_quota(group) is None


def test_a_quota_below_the_kernels_minimum_says_what_the_minimum_is(group: Group) -> None:
    with pytest.raises(CgroupError, match=r"no less than 1000 µs \(0\.01 cores\)"):
        cpu.write_quota(group, 0.005)


@given(version=st.sampled_from(VERSIONS), period_us=periods, cores=st.floats(1e-9, 1e5))
def test_every_quota_text_is_within_half_a_microsecond_or_refused(
    version: Version, period_us: int, cores: float
) -> None:
    try:
        text = cpu.quota_text(version, cores, period_us)
    except CgroupError:
        assert cores * period_us < 1_000
        return
    quota_us, found_us = cpu.parse_max(text if version == 2 else f"{text} {period_us}")
    assert quota_us is not None
    assert quota_us >= 1_000
    assert abs(quota_us - cores * period_us) <= 0.5 + 1e-6
    assert found_us == period_us


def test_throttling_has_the_same_units_in_both_versions(group: Group) -> None:
    assert cpu.read_throttling(group) == Throttling(33, 31, 2_400_000_000)


def test_a_cpu_stat_without_quota_figures_is_an_error_that_names_the_file(group: Group) -> None:
    (group.directory / "cpu.stat").write_text("usage_usec 5\n")
    with pytest.raises(CgroupError, match=r"cpu\.stat': no nr_periods"):
        cpu.read_throttling(group)


@given(st.sampled_from(VERSIONS), st.text())
def test_no_cpu_stat_text_makes_the_parser_fail_but_with_value_error(
    version: Version, text: str
) -> None:
    with contextlib.suppress(ValueError):
        cpu.parse_throttling(version, text)


def test_text_that_is_not_the_kernels_is_an_error_that_names_the_file(group: Group) -> None:
    for change in (cpu.weight_change(group, 5), cpu.quota_change(group, 0.5)):
        change.file.write_text("what")
    with pytest.raises(CgroupError, match=r"could not understand '.*cpu\.(weight|shares)'"):
        cpu.read_weight(group)
    with pytest.raises(CgroupError, match=r"could not understand '.*cpu\.(max|cfs_quota_us)'"):
        cpu.read_quota(group)


def test_a_file_that_does_not_hold_what_was_written_names_file_wanted_and_found(
    group: Group,
) -> None:
    file = cpu.weight_change(group, 5).file
    with pytest.raises(CgroupError, match=rf"'{file}' holds '7' after '7 ' was written"):
        cpu.apply(Change(file, "7 "))
