import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.limits import undo_list
from controller.limits.undo_list import Entry

ROOT = Path("/somewhere/cgroup")

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
entries = st.builds(
    Entry,
    file=st.tuples(
        st.text(st.sampled_from('ab é"\\{}[],'), min_size=1),
        st.sampled_from(sorted(undo_list.WRITABLE)),
    ).map(lambda parts: ROOT / "x" / parts[0] / parts[1]),
    original=texts,
    applied=st.lists(texts, max_size=3).map(tuple),
    owner=texts,
    reason=texts,
    since_ns=st.integers(0, 2**63),
    cgroup_id=st.integers(0, 2**64 - 1),
)


@given(st.lists(entries, max_size=5))
def test_a_list_reads_as_written(written: list[Entry]) -> None:
    assert undo_list.parse(undo_list.render(written), [ROOT]) == (tuple(written), ())


@given(st.lists(entries, min_size=1, max_size=4))
def test_a_list_that_an_editor_has_indented_reads_the_same(written: list[Entry]) -> None:
    text = json.dumps(json.loads(undo_list.render(written)), indent=2)
    assert undo_list.parse(text, [ROOT]) == (tuple(written), ())


@given(st.lists(entries, min_size=2, max_size=5), st.data())
def test_one_broken_line_costs_only_its_own_entry_and_is_named(
    written: list[Entry], data: st.DataObject
) -> None:
    lines = undo_list.render(written).split("\n")
    broken = data.draw(st.integers(1, len(written)))
    lines[broken] = lines[broken][: data.draw(st.integers(1, len(lines[broken]) - 3))]
    found, problems = undo_list.parse("\n".join(lines), [ROOT])
    assert found == tuple(written[: broken - 1] + written[broken:])
    assert [problem.line for problem in problems] == [broken + 1]


@given(st.text() | st.text(st.sampled_from('{}[]",:\n1a')))
def test_no_text_makes_the_parser_fail_and_only_an_array_of_nothing_is_silent(text: str) -> None:
    found, problems = undo_list.parse(text, [ROOT])
    assert found == ()
    if not problems:
        assert "{" not in text
        assert isinstance(json.loads(text), list)


def test_nesting_too_deep_for_the_parser_is_a_problem_like_another() -> None:
    found, problems = undo_list.parse('[\n{"a":' + "[" * 200_000 + "\n]", [ROOT])
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
    lines = undo_list.render([good, good]).split("\n")
    lines[2] = json.dumps(json.loads(lines[2]) | {field: value})
    found, problems = undo_list.parse("\n".join(lines), [ROOT])
    assert found == (good,)
    assert [problem.line for problem in problems] == [3]
    assert field in problems[0].message


def test_only_its_owner_may_read_a_list(tmp_path: Path) -> None:
    path = tmp_path / "undo.json"
    undo_list.save(path, [Entry(ROOT / "a" / "cpu.weight", "100", ("5",), "test", "why", 5, 6)])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_list_of_nothing_is_no_file(tmp_path: Path) -> None:
    undo_list.save(tmp_path / "undo.json", [])
    assert list(tmp_path.iterdir()) == []


def test_a_lock_goes_to_one_at_a_time_and_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "undo.json"
    for _ in range(2):
        with undo_list.locked(path, 0) as first, undo_list.locked(path, 5) as second:
            assert (first, second) == (True, False)
