"""The limiter's other files: each is held, found changed, put back, where it has lines by line.

Plain files take whatever is written; the kernel keeps the lines that a write does not name, so
here a write does as well.
"""

import os
from pathlib import Path

import pytest

from controller.limits import cgroup, undo_list
from controller.limits.cgroup import CgroupError, Group, Hierarchies, cpu_group
from controller.limits.change import KEYED
from controller.limits.holds import Held, Lapsed
from controller.limits.limiter import Limiter
from controller.limits.undo import Foreign, run_undo

FIRST, SECOND = "drm/0000:03:00.0/vram0", "drm/0000:04:00.0/vram0"


@pytest.fixture(autouse=True)
def keyed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: Path, text: str) -> None:
        if file.name in KEYED:
            lines = dict(line.split(" ") for line in file.read_text().splitlines())
            key, value = text.split(" ")
            text = "\n".join(f"{key} {value}" for key, value in (lines | {key: value}).items())
        cgroup.write(file, text)

    monkeypatch.setattr("controller.limits.cpu.write", write)


@pytest.fixture
def group(v2: Hierarchies) -> Group:
    return cpu_group(v2, "/engine")


@pytest.fixture
def root(v2: Hierarchies) -> Path:
    assert v2.v2 is not None
    return v2.v2.point


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "undo.json"


@pytest.fixture
def limiter(path: Path, root: Path, v2: Hierarchies) -> Limiter:
    return Limiter(path, roots=[root], hierarchies=v2)


def texts(group: Group) -> dict[str, str]:
    names = ("cpu.weight", "memory.high", "io.weight", "dmem.max")
    return {name: (group.directory / name).read_text().strip() for name in names}


def set_all(limiter: Limiter, group: Group) -> list[Held | Foreign]:
    return [
        limiter.set_weight(group, 10, "test"),
        limiter.set_memory_high(group, 1 << 20, "test"),
        limiter.set_io_weight(group, 10, "test"),
        limiter.set_dmem_max(group, FIRST, 1 << 30, "test"),
        limiter.set_dmem_max(group, SECOND, None, "test"),
    ]


def test_all_are_held_at_once_and_put_back_together(
    limiter: Limiter, group: Group, path: Path
) -> None:
    before = texts(group)
    assert all(isinstance(each, Held) for each in set_all(limiter, group))
    assert texts(group) == {
        "cpu.weight": "10",
        "memory.high": str(1 << 20),
        "io.weight": "default 10\n8:16 200",
        "dmem.max": f"{FIRST} {1 << 30}\n{SECOND} max",
    }
    assert len(limiter.held()) == 5
    assert limiter.check() == ()
    assert limiter.release(group).complete
    assert texts(group) == before
    assert not path.exists()


def test_the_list_alone_puts_every_line_back(
    limiter: Limiter, group: Group, path: Path, root: Path
) -> None:
    before = texts(group)
    set_all(limiter, group)
    assert len(run_undo(path, [root]).restored) == 5
    assert texts(group) == before
    assert [type(each) for each in limiter.check()] == [Lapsed] * 5


def test_somebody_elses_line_in_the_same_file_is_not_taken_for_a_write_to_ours(
    limiter: Limiter, group: Group
) -> None:
    limiter.set_dmem_max(group, FIRST, 1 << 30, "test")
    limiter.set_io_weight(group, 10, "test")
    (group.directory / "dmem.max").write_text(f"{FIRST} {1 << 30}\n{SECOND} 4096\n")
    (group.directory / "io.weight").write_text("default 10\n8:16 300\n8:32 5\n")
    assert limiter.check() == ()
    limiter.release(group)
    assert texts(group)["dmem.max"] == f"{FIRST} max\n{SECOND} 4096"
    assert texts(group)["io.weight"] == "default 100\n8:16 300\n8:32 5"


def test_of_two_lines_that_we_hold_only_the_one_that_somebody_wrote_is_given_up(
    limiter: Limiter, group: Group
) -> None:
    limiter.set_dmem_max(group, FIRST, 1 << 30, "test")
    limiter.set_dmem_max(group, SECOND, 1 << 30, "test")
    (group.directory / "dmem.max").write_text(f"{FIRST} 4096\n{SECOND} {1 << 30}\n")
    assert [each.found for each in limiter.check() if isinstance(each, Foreign)] == [
        f"{FIRST} 4096"
    ]
    assert [held.applied for held in limiter.held()] == [f"{SECOND} {1 << 30}"]
    assert isinstance(limiter.set_dmem_max(group, FIRST, 8192, "test"), Foreign)
    limiter.release_all()
    assert texts(group)["dmem.max"] == f"{FIRST} 4096\n{SECOND} 1048576"


def test_a_region_that_went_is_let_go(limiter: Limiter, group: Group, path: Path) -> None:
    limiter.set_dmem_max(group, FIRST, 1 << 30, "test")
    (group.directory / "dmem.max").write_text(f"{SECOND} max\n")
    assert [type(each) for each in limiter.check()] == [Lapsed]
    assert not path.exists()


def test_quotas_of_a_tree_are_all_set_and_held(
    limiter: Limiter, group: Group, v2: Hierarchies
) -> None:
    child = cpu_group(v2, "/engine/child")
    helds = limiter.set_quotas({group: 1.0, child: 0.5}, "test")
    assert {each.path: held.applied for each, held in helds.items() if isinstance(held, Held)} == {
        "/engine": "100000 100000",
        "/engine/child": "50000 100000",
    }


def test_v1_keeps_disk_weights_in_another_hierarchy_and_they_are_released_with_the_group(
    path: Path, v1: Hierarchies, tmp_path: Path
) -> None:
    blkio = cgroup.Mount(tmp_path / "blkio")
    (blkio.point / "engine").mkdir(parents=True)
    file = blkio.point / "engine" / "blkio.bfq.weight"
    file.write_text("100\n")
    found = Hierarchies(v1.v2, v1.v1_cpu, v1_blkio=blkio)
    assert v1.v1_cpu is not None
    limiter = Limiter(path, roots=[blkio.point, v1.v1_cpu.point], hierarchies=found)
    group = cpu_group(found, "/engine")
    held = limiter.set_io_weight(group, 10_000, "test")
    assert isinstance(held, Held)
    assert (held.group, held.file, file.read_text()) == (group, file, "1000")
    limiter.release(group)
    assert file.read_text() == "100"
    assert not path.exists()


def test_a_group_of_the_same_path_with_other_processes_is_not_limited(
    path: Path, v1: Hierarchies, tmp_path: Path
) -> None:
    blkio = cgroup.Mount(tmp_path / "blkio")
    (blkio.point / "engine").mkdir(parents=True)
    (blkio.point / "engine" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    found = Hierarchies(v1.v2, v1.v1_cpu, v1_blkio=blkio)
    with pytest.raises(CgroupError, match="has other processes than"):
        Limiter(path, roots=[], hierarchies=found).set_io_weight(
            cpu_group(found, "/engine"), 10, "test"
        )


def test_a_group_without_its_processes_is_not_limited(
    path: Path, v1: Hierarchies, tmp_path: Path
) -> None:
    blkio = cgroup.Mount(tmp_path / "blkio")
    (blkio.point / "engine").mkdir(parents=True)
    found = Hierarchies(v1.v2, v1.v1_cpu, v1_blkio=blkio)
    group = cpu_group(found, "/engine")
    (group.directory / "cgroup.procs").write_text(f"{os.getpid()}\n")
    with pytest.raises(CgroupError, match="has none of the processes"):
        Limiter(path, roots=[], hierarchies=found).set_io_weight(group, 10, "test")


@pytest.mark.parametrize("for_ms", [0, -1, 5_001])
def test_a_bound_that_no_class_has_is_refused(limiter: Limiter, group: Group, for_ms: int) -> None:
    with pytest.raises(CgroupError, match=f"a freeze is 1 to 5000 ms, not {for_ms}"):
        limiter.freeze(group, for_ms, "test")


def test_a_deadline_comes_back_from_the_list_as_it_was(path: Path, root: Path) -> None:
    entry = undo_list.Entry(root / "engine/cgroup.freeze", "0", ("1",), "me", "why", 1, 2, 3)
    undo_list.save(path, [entry])
    assert undo_list.load(path, [root]) == ((entry,), ())


def test_a_list_of_an_older_version_has_no_deadlines(path: Path, root: Path) -> None:
    entry = undo_list.Entry(root / "engine/cpu.weight", "100", ("1",), "me", "why", 1, 2)
    undo_list.save(path, [entry])
    path.write_text(path.read_text().replace(', "until_ns": null', ""))
    assert undo_list.load(path, [root]) == ((entry,), ())
