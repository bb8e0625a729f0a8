import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from controller.limits import cpu, undo, undo_list
from controller.limits.cgroup import Group, Hierarchies, cpu_group
from controller.limits.undo import Report, run_undo
from controller.limits.undo_list import Entry


@pytest.fixture
def group(either: Hierarchies) -> Group:
    return cpu_group(either, "/engine")


@pytest.fixture
def roots(either: Hierarchies) -> list[Path]:
    return [mount.point for mount in (either.v1_cpu, either.v2) if mount is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "undo.json"


def limited(group: Group, weight: int) -> Entry:
    """The group's weight set as a limiter would, and the entry for it."""
    change = cpu.weight_change(group, weight)
    original = change.file.read_text().strip()
    cpu.apply(change)
    return Entry(change.file, original, (change.text,), "test", "a reason", 5, group.cgroup_id)


def test_undo_restores_and_removes_the_list(group: Group, roots: list[Path], path: Path) -> None:
    undo_list.save(path, [limited(group, 500)])
    assert run_undo(path, roots).restored != ()
    assert cpu.read_weight(group) == 100
    assert not path.exists()


def test_undo_without_a_list_does_nothing(path: Path) -> None:
    assert run_undo(path) == Report()
    assert list(path.parent.iterdir()) == []


def test_two_changes_of_one_file_listed_apart_go_back_to_the_first_original(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo_list.save(path, [limited(group, 500), limited(group, 900)])
    assert len(run_undo(path, roots).restored) == 2
    assert cpu.read_weight(group) == 100


def test_a_foreign_write_is_left_alone_and_reported(
    group: Group, roots: list[Path], path: Path
) -> None:
    entry = limited(group, 500)
    undo_list.save(path, [entry])
    entry.file.write_text("777")
    report = run_undo(path, roots)
    assert report.foreign == (undo.Foreign(entry, "777"),)
    assert entry.file.read_text() == "777"
    assert not path.exists()


def test_an_entry_whose_file_was_never_written_changes_nothing(
    group: Group, roots: list[Path], path: Path
) -> None:
    entry = replace(limited(group, 500), applied=("1",), original="5120")
    entry.file.write_text("5120")
    undo_list.save(path, [entry])
    assert run_undo(path, roots).unchanged == (entry,)


def test_a_vanished_group_is_dropped(group: Group, roots: list[Path], path: Path) -> None:
    entry = limited(group, 500)
    undo_list.save(path, [replace(entry, file=entry.file.parent / "gone" / entry.file.name), entry])
    report = run_undo(path, roots)
    assert (len(report.vanished), len(report.restored)) == (1, 1)
    assert not path.exists()


def test_a_later_group_of_the_same_name_is_not_touched(
    group: Group, roots: list[Path], path: Path
) -> None:
    entry = replace(limited(group, 500), cgroup_id=group.cgroup_id + 1)
    undo_list.save(path, [entry])
    assert run_undo(path, roots).vanished == (entry,)
    assert cpu.read_weight(group) == 500


def test_what_cannot_be_undone_stays_listed(group: Group, roots: list[Path], path: Path) -> None:
    entry = limited(group, 500)
    blocked = replace(entry, file=entry.file.parent / "child" / "cgroup.freeze", original="0")
    blocked = replace(blocked, cgroup_id=blocked.file.parent.stat().st_ino)
    blocked.file.unlink(missing_ok=True)
    blocked.file.mkdir()
    undo_list.save(path, [blocked, entry])
    report = run_undo(path, roots)
    assert [kept.entry for kept in report.kept] == [blocked]
    assert "Is a directory" in report.kept[0].why
    assert not report.complete
    assert undo_list.load(path, roots) == ((blocked,), ())


def test_a_broken_list_is_named_with_its_line_kept_aside_and_its_valid_entries_undone(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo_list.save(path, [limited(group, 500)])
    text = path.read_text().replace("[\n", "[\n{nonsense\n")
    path.write_text(text)
    report = run_undo(path, roots)
    assert report.problems[0].startswith(f"could not read undo list '{path}', line 2: ")
    assert cpu.read_weight(group) == 100
    assert not path.exists()
    assert Path(f"{path}.corrupt").read_text() == text


@pytest.mark.parametrize(
    "file",
    [
        "/etc/passwd",
        "cpu.weight",
        "{root}/cpu.weight",
        "{root}/engine/cgroup.procs",
        "{root}/engine/../../victim/cpu.weight",
        "{root}/link/cpu.weight",
        "{root}/\0/cpu.weight",
    ],
)
def test_a_tampered_list_writes_nowhere_else(
    group: Group, roots: list[Path], path: Path, tmp_path: Path, file: str
) -> None:
    root = group.directory.parent
    victim = tmp_path / "victim" / "cpu.weight"
    victim.parent.mkdir()
    victim.write_text("5")
    (root / "cpu.weight").write_text("5")
    (root / "link").symlink_to(victim.parent)
    entry = replace(
        limited(group, 500), file=Path(file.format(root=root)), original="evil", applied=("5",)
    )
    with suppress(OSError, ValueError):
        entry = replace(entry, cgroup_id=entry.file.parent.stat().st_ino)
    undo_list.save(path, [entry])
    report = run_undo(path, roots)
    assert len(report.problems) == 1
    assert (victim.read_text(), (root / "cpu.weight").read_text()) == ("5", "5")


def test_a_link_in_the_place_of_a_cgroup_file_is_not_followed(
    group: Group, roots: list[Path], path: Path, tmp_path: Path
) -> None:
    entry, victim = limited(group, 500), tmp_path / "victim"
    victim.write_text(entry.applied[0])
    entry.file.unlink()
    entry.file.symlink_to(victim)
    undo_list.save(path, [entry])
    assert len(run_undo(path, roots).kept) == 1
    assert victim.read_text() == entry.applied[0]


def test_without_roots_only_this_machines_cgroup_mounts_count(group: Group, path: Path) -> None:
    undo_list.save(path, [limited(group, 500)])
    assert "not in a cgroup below a cgroup mount" in run_undo(path).problems[0]
    assert cpu.read_weight(group) == 500


def test_a_locked_list_is_restored_from_but_left_for_a_later_run(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo_list.save(path, [limited(group, 500)])
    with undo_list.locked(path, 0) as alone:
        assert alone
        report = run_undo(path, roots, wait_ms=5)
    assert report.busy
    assert not report.complete
    assert cpu.read_weight(group) == 100
    assert path.exists()
    assert run_undo(path, roots).complete
    assert not path.exists()


def test_runs_at_the_same_time_undo_everything_once_and_fail_nowhere(
    either: Hierarchies, roots: list[Path], path: Path
) -> None:
    groups = [cpu_group(either, each) for each in ("/engine", "/engine/child", "/neighbour")]
    reports: list[Report] = []
    for _ in range(20):
        undo_list.save(path, [limited(group, 500) for group in groups])
        threads = [
            threading.Thread(target=lambda: reports.append(run_undo(path, roots, 5_000)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not path.exists()
        assert [cpu.read_weight(group) for group in groups] == [100, 100, 100]
    assert len(reports) == 80
    assert all(report.complete and not report.problems for report in reports)
    assert sum(len(report.restored) for report in reports) == 60


def test_a_save_that_was_killed_half_way_leaves_the_old_list(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo_list.save(path, [limited(group, 500)])
    path.with_name(f"{path.name}.new").write_text('[\n{"file": "/half')
    assert len(run_undo(path, roots).restored) == 1
    assert not path.with_name(f"{path.name}.new").exists()


def test_the_command_says_what_it_did_and_fails_on_a_broken_list(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert undo.main([str(path)]) == 0
    path.write_text("{}")
    assert undo.main([str(path)]) == 1
    assert f"could not read undo list '{path}', line 1" in capsys.readouterr().out
    assert undo.main([]) == 2


def frozen(directory: Path, until_ns: int) -> Entry:
    """A group that we have frozen until then, as the list says it."""
    (directory / "cgroup.freeze").write_text("1\n")
    cgroup_id = directory.stat().st_ino
    return Entry(directory / "cgroup.freeze", "0", ("1",), "test", "a test", 1, cgroup_id, until_ns)


def test_only_freezes_that_are_overdue_are_ended_and_the_list_stays_as_it_is(
    v2: Hierarchies, path: Path
) -> None:
    assert v2.v2 is not None
    now_ns = time.monotonic_ns()
    late = frozen(v2.v2.point / "engine", now_ns - 10**9)
    due = frozen(v2.v2.point / "neighbour", now_ns + 10**12)
    undo_list.save(path, [late, due])
    report, next_ns = undo.thaw_overdue(path, [v2.v2.point])
    assert report.restored == (late,)
    assert next_ns == now_ns + 10**12 + undo.THAW_GRACE_NS
    assert (late.file.read_text(), due.file.read_text()) == ("0", "1\n")
    assert undo_list.load(path, [v2.v2.point]) == ((late, due), ())


def test_an_overdue_freeze_is_ended_while_somebody_holds_the_list(
    v2: Hierarchies, path: Path
) -> None:
    assert v2.v2 is not None
    entry = frozen(v2.v2.point / "engine", 1)
    undo_list.save(path, [entry])
    with undo_list.locked(path, 0):
        assert undo.thaw_overdue(path, [v2.v2.point])[0].restored == (entry,)
    assert entry.file.read_text() == "0"


def test_limits_without_a_deadline_are_no_freezes(v2: Hierarchies, path: Path) -> None:
    assert v2.v2 is not None
    undo_list.save(path, [replace(frozen(v2.v2.point / "engine", 1), until_ns=None)])
    assert undo.thaw_overdue(path, [v2.v2.point]) == (undo.Report(), None)
