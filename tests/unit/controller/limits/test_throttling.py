from pathlib import Path

import pytest

from controller.limits.cgroup import CgroupError, Group
from controller.limits.throttling import ThrottlingReader

V1 = "nr_periods 33\nnr_throttled 31\nthrottled_time {}\n"


def group(directory: Path) -> Group:
    return Group("/g", directory, 1, 7)


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_reads_the_file_again_each_time(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text(V1.format(5))
    reader = ThrottlingReader(group(tmp_path))
    assert reader.throttled_ns() == 5
    (tmp_path / "cpu.stat").write_text(V1.format(7))
    assert reader.throttled_ns() == 7
    reader.close()


def test_a_group_that_is_gone_is_told_and_one_made_in_its_place_is_read(tmp_path: Path) -> None:
    reader = ThrottlingReader(group(tmp_path / "g"))
    with pytest.raises(CgroupError, match=r"could not read '.*/g/cpu.stat': No such file"):
        reader.throttled_ns()
    (tmp_path / "g").mkdir()
    (tmp_path / "g/cpu.stat").write_text(V1.format(9))
    assert reader.throttled_ns() == 9
    reader.close()


def test_what_is_not_understood_is_told(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nothing 1\n")
    reader = ThrottlingReader(group(tmp_path))
    with pytest.raises(CgroupError, match="no nr_periods"):
        reader.throttled_ns()
    reader.close()


def test_it_keeps_one_file_open_and_closes_it(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text(V1.format(5))
    before = opened()
    reader = ThrottlingReader(group(tmp_path))
    for _ in range(3):
        reader.throttled_ns()
    assert opened() == before + 1
    reader.close()
    assert opened() == before
