import pytest

from tests.gate.comparing import FAILS, Group, Verdict, compare, differences, group_of

TOOLS = {"clang": "14", "machine": "x86_64"}


def verdicts(
    recorded: dict[str, int], now: dict[str, int], tools: dict[str, str] | None = None
) -> dict[str, Verdict]:
    rows = compare(Group(TOOLS, recorded), Group(tools or TOOLS, now), tolerance=0.05)
    return {row.name: row.verdict for row in rows}


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (94, Verdict.LESS),
        (95, Verdict.SAME),
        (100, Verdict.SAME),
        (105, Verdict.SAME),
        (106, Verdict.MORE),
    ],
)
def test_a_figure_may_grow_by_the_tolerance_and_no_further(now: int, verdict: Verdict) -> None:
    assert verdicts({"a": 100}, {"a": now}) == {"a": verdict}


def test_a_figure_that_is_not_recorded_and_one_that_is_gone_fail() -> None:
    found = verdicts({"old": 1}, {"new": 1})
    assert found == {"old": Verdict.GONE, "new": Verdict.NOT_RECORDED}
    assert set(found.values()) <= FAILS


def test_what_got_less_or_stayed_does_not_fail() -> None:
    assert not {Verdict.LESS, Verdict.SAME, Verdict.SKIPPED} & FAILS


def test_figures_of_other_tools_are_skipped_whatever_they_are() -> None:
    found = verdicts({"a": 100, "old": 1}, {"a": 900, "new": 1}, {**TOOLS, "clang": "19"})
    assert set(found.values()) == {Verdict.SKIPPED}
    assert found.keys() == {"a", "old", "new"}


def test_why_they_are_skipped_is_said_by_tool() -> None:
    recorded, now = Group(TOOLS, {}), Group({**TOOLS, "clang": "19"}, {})
    assert differences(recorded, now) == ["clang: recorded with 14, here 19"]


def test_a_tool_that_only_one_of_both_names_is_a_difference() -> None:
    assert differences(Group(TOOLS, {}), Group({"clang": "14"}, {})) == [
        "machine: recorded with x86_64, here none"
    ]


def test_a_row_tells_by_how_much_it_changed() -> None:
    (row,) = compare(Group(TOOLS, {"a": 200}), Group(TOOLS, {"a": 300}), tolerance=0.05)
    assert row.ratio == 1.5


def test_a_group_comes_back_from_the_file_as_it_was() -> None:
    group = Group(TOOLS, {"a": 1})
    assert group_of(group.as_dict()) == group
