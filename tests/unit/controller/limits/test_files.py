"""Memory, disk and GPU memory: what is written, what is compared, what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.limits import block_io, memory
from controller.limits.cgroup import CgroupError, Group, Hierarchies, cpu_group
from controller.limits.change import Change, shown, slot_of
from controller.limits.cpu import apply


@pytest.fixture
def group(v2: Hierarchies) -> Group:
    return cpu_group(v2, "/engine")


def test_a_memory_limit_is_cut_to_whole_pages_and_read_back(group: Group) -> None:
    apply(memory.memory_high_change(group, 10 * 4096 + 5))
    assert memory.read_memory_high(group) == 10 * 4096
    apply(memory.memory_high_change(group, None))
    assert memory.read_memory_high(group) is None


def test_a_memory_limit_below_a_page_is_refused(group: Group) -> None:
    with pytest.raises(CgroupError, match="a memory limit is a page"):
        memory.memory_high_change(group, 100)


def test_v1_has_no_memory_high_and_the_refusal_says_so(v1: Hierarchies) -> None:
    with pytest.raises(CgroupError, match=r"cgroup v1 has no memory\.high"):
        memory.memory_high_change(cpu_group(v1, "/engine"), 4096)


def test_a_group_without_the_memory_controller_is_refused(group: Group) -> None:
    (group.directory / "memory.high").unlink()
    with pytest.raises(CgroupError, match="the memory controller is not enabled"):
        memory.memory_high_change(group, 4096)


def test_only_the_line_of_its_region_is_a_gpu_memory_limit(group: Group) -> None:
    regions = memory.dmem_regions(group)
    assert regions == {"drm/0000:03:00.0/vram0": None, "drm/0000:04:00.0/vram0": 1048576}
    change = memory.dmem_max_change(group, "drm/0000:04:00.0/vram0", None)
    assert change.text == "drm/0000:04:00.0/vram0 max"
    assert shown(change.file, change.text) == "drm/0000:04:00.0/vram0 1048576"


def test_an_unknown_region_and_a_kernel_without_dmem_are_refused(group: Group) -> None:
    with pytest.raises(CgroupError, match="has no region 'drm/1'"):
        memory.dmem_max_change(group, "drm/1", 4096)
    (group.directory / "dmem.max").unlink()
    with pytest.raises(CgroupError, match=r"kernel 6\.14, CONFIG_CGROUP_DMEM"):
        memory.dmem_max_change(group, "drm/1", 4096)


def test_a_disk_weight_is_the_default_line_whatever_disks_have_lines_of_their_own(
    group: Group,
) -> None:
    assert block_io.read_io_weight(group) == 100
    change = block_io.io_weight_change(group, 10)
    assert change == Change(group.directory / "io.weight", "default 10")
    assert shown(change.file, change.text) == "default 100"


@pytest.mark.parametrize(
    ("name", "text"), [("blkio.bfq.weight", "10"), ("blkio.weight", "50"), ("io.bfq.weight", "")]
)
def test_a_disk_weight_is_written_where_there_is_one_or_refused(
    v1: Hierarchies, name: str, text: str
) -> None:
    group = cpu_group(v1, "/engine")
    (group.directory / name).write_text("100")
    if text:
        assert block_io.io_weight_change(group, 10) == Change(group.directory / name, text)
    else:
        with pytest.raises(CgroupError, match="has no disk weight"):
            block_io.io_weight_change(group, 10)


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_disk_weights_keep_their_order_in_other_units_and_stay_in_range(a: int, b: int) -> None:
    low, high = sorted((a, b))
    for convert, least, most in ((block_io.bfq_weight, 1, 1000), (block_io.cfq_weight, 10, 1000)):
        assert least <= convert(low) <= convert(high) <= most


def test_the_default_disk_weight_is_the_default_in_all_units() -> None:
    assert (block_io.bfq_weight(100), block_io.cfq_weight(100)) == (100, 500)
    assert (block_io.bfq_weight(10_000), block_io.cfq_weight(10_000)) == (1_000, 1_000)


def test_v1s_freezer_is_what_was_asked_of_the_group_itself(tmp_path: Path) -> None:
    file = tmp_path / "freezer.state"
    file.write_text("FREEZING\n")
    (tmp_path / "freezer.self_freezing").write_text("1\n")
    assert shown(file, "FROZEN") == "FROZEN"
    file.write_text("FROZEN\n")
    (tmp_path / "freezer.self_freezing").write_text("0\n")
    assert shown(file, "FROZEN") == "THAWED"


@given(st.text("default 0:1289\nmax", max_size=60))
def test_a_line_that_is_not_there_is_empty_never_another_one(text: str) -> None:
    slot = slot_of(Path("/a/io.weight"), "default 5")
    assert slot == (Path("/a/io.weight"), "default")
    assert slot_of(Path("/a/cpu.max"), "1000 5000") == (Path("/a/cpu.max"), "")
