import json
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.limits import cpu, undo
from controller.limits.cgroup import Group, Hierarchies, cpu_group
from controller.limits.undo import Entry, Report, run_undo

ROOT = Path("/somewhere/cgroup")

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
entries = st.builds(
    Entry,
    file=st.tuples(
        st.text(st.sampled_from('ab é"\\{}[],'), min_size=1), st.sampled_from(sorted(undo.WRITABLE))
    ).map(lambda parts: ROOT / "x" / parts[0] / parts[1]),
    original=texts,
    applied=st.lists(texts, max_size=3).map(tuple),
    owner=texts,
    reason=texts,
    since_ns=st.integers(0, 2**63),
    cgroup_id=st.integers(0, 2**64 - 1),
)


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


@given(st.lists(entries, max_size=5))
def test_a_list_reads_as_written(written: list[Entry]) -> None:
    assert undo.parse(undo.render(written), [ROOT]) == (tuple(written), ())


@given(st.lists(entries, min_size=1, max_size=4))
def test_a_list_that_an_editor_has_indented_reads_the_same(written: list[Entry]) -> None:
    text = json.dumps(json.loads(undo.render(written)), indent=2)
    assert undo.parse(text, [ROOT]) == (tuple(written), ())


@given(st.lists(entries, min_size=2, max_size=5), st.data())
def test_one_broken_line_costs_only_its_own_entry_and_is_named(
    written: list[Entry], data: st.DataObject
) -> None:
    lines = undo.render(written).split("\n")
    broken = data.draw(st.integers(1, len(written)))
    lines[broken] = lines[broken][: data.draw(st.integers(1, len(lines[broken]) - 3))]
    found, problems = undo.parse("\n".join(lines), [ROOT])
    assert found == tuple(written[: broken - 1] + written[broken:])
    assert [problem.line for problem in problems] == [broken + 1]


@given(st.text() | st.text(st.sampled_from('{}[]",:\n1a')))
def test_no_text_makes_the_parser_fail_and_only_an_array_of_nothing_is_silent(text: str) -> None:
    found, problems = undo.parse(text, [ROOT])
    assert found == ()
    if not problems:
        assert "{" not in text
        assert isinstance(json.loads(text), list)


def test_nesting_too_deep_for_the_parser_is_a_problem_like_another() -> None:
    found, problems = undo.parse('[\n{"a":' + "[" * 200_000 + "\n]", [ROOT])
    assert (found, problems[0].line) == ((), 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file", 5),
        ("original", None),
        ("applied", "100"),
        ("applied", [100]),
        ("owner", []),
        ("since_ns", "5"),
        ("since_ns", True),
        ("cgroup_id", 1.5),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_its_line(field: str, value: object) -> None:
    good = Entry(ROOT / "a" / "cpu.weight", "100", ("5",), "test", "why", 5, 6)
    lines = undo.render([good, good]).split("\n")
    lines[2] = json.dumps(json.loads(lines[2]) | {field: value})
    found, problems = undo.parse("\n".join(lines), [ROOT])
    assert found == (good,)
    assert [problem.line for problem in problems] == [3]
    assert field in problems[0].message


def test_undo_restores_and_removes_the_list(group: Group, roots: list[Path], path: Path) -> None:
    undo.save(path, [limited(group, 500)])
    assert run_undo(path, roots).restored != ()
    assert cpu.read_weight(group) == 100
    assert not path.exists()


def test_undo_without_a_list_does_nothing(path: Path) -> None:
    assert run_undo(path) == Report()
    assert list(path.parent.iterdir()) == []


def test_two_changes_of_one_file_listed_apart_go_back_to_the_first_original(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo.save(path, [limited(group, 500), limited(group, 900)])
    assert len(run_undo(path, roots).restored) == 2
    assert cpu.read_weight(group) == 100


def test_a_foreign_write_is_left_alone_and_reported(
    group: Group, roots: list[Path], path: Path
) -> None:
    entry = limited(group, 500)
    undo.save(path, [entry])
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
    undo.save(path, [entry])
    assert run_undo(path, roots).unchanged == (entry,)


def test_a_vanished_group_is_dropped(group: Group, roots: list[Path], path: Path) -> None:
    entry = limited(group, 500)
    undo.save(path, [replace(entry, file=entry.file.parent / "gone" / entry.file.name), entry])
    report = run_undo(path, roots)
    assert (len(report.vanished), len(report.restored)) == (1, 1)
    assert not path.exists()


def test_a_later_group_of_the_same_name_is_not_touched(
    group: Group, roots: list[Path], path: Path
) -> None:
    entry = replace(limited(group, 500), cgroup_id=group.cgroup_id + 1)
    undo.save(path, [entry])
    assert run_undo(path, roots).vanished == (entry,)
    assert cpu.read_weight(group) == 500


def test_what_cannot_be_undone_stays_listed(group: Group, roots: list[Path], path: Path) -> None:
    entry = limited(group, 500)
    blocked = replace(entry, file=entry.file.parent / "child" / "cgroup.freeze", original="0")
    blocked = replace(blocked, cgroup_id=blocked.file.parent.stat().st_ino)
    blocked.file.unlink(missing_ok=True)
    blocked.file.mkdir()
    undo.save(path, [blocked, entry])
    report = run_undo(path, roots)
    assert [kept.entry for kept in report.kept] == [blocked]
    assert "Is a directory" in report.kept[0].why
    assert not report.complete
    assert undo.load(path, roots) == ((blocked,), ())


def test_a_broken_list_is_named_with_its_line_kept_aside_and_its_valid_entries_undone(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo.save(path, [limited(group, 500)])
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
    undo.save(path, [entry])
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
    undo.save(path, [entry])
    assert len(run_undo(path, roots).kept) == 1
    assert victim.read_text() == entry.applied[0]


def test_without_roots_only_this_machines_cgroup_mounts_count(group: Group, path: Path) -> None:
    undo.save(path, [limited(group, 500)])
    assert "not in a cgroup below a cgroup mount" in run_undo(path).problems[0]
    assert cpu.read_weight(group) == 500


def test_a_locked_list_is_restored_from_but_left_for_a_later_run(
    group: Group, roots: list[Path], path: Path
) -> None:
    undo.save(path, [limited(group, 500)])
    with undo.locked(path, 0) as alone:
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
        undo.save(path, [limited(group, 500) for group in groups])
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
    undo.save(path, [limited(group, 500)])
    path.with_name(f"{path.name}.new").write_text('[\n{"file": "/half')
    assert len(run_undo(path, roots).restored) == 1
    assert not path.with_name(f"{path.name}.new").exists()


def test_only_the_owner_may_read_a_list(group: Group, path: Path) -> None:
    undo.save(path, [limited(group, 500)])
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_command_says_what_it_did_and_fails_on_a_broken_list(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert undo.main([str(path)]) == 0
    path.write_text("{}")
    assert undo.main([str(path)]) == 1
    assert f"could not read undo list '{path}', line 1" in capsys.readouterr().out
    assert undo.main([]) == 2
