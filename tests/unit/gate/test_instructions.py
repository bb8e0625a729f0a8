from itertools import pairwise
from pathlib import Path

import pytest

from tests.gate.hot import TIMES, paths, take
from tests.gate.instructions import dumps, per_turn, total_of


def test_a_turn_is_what_twice_as_many_turns_took_beyond_so_many() -> None:
    # before, 100 turns of 7 and an overhead of 50, 200 turns and the same overhead; then of 9
    counts = [123, 750, 1450, 4, 950, 1850]
    assert per_turn(counts, times=100) == [7, 9]


def test_the_total_of_a_dump_is_read_from_its_head() -> None:
    assert total_of("desc: Trigger: --dump-before=ctermid\n\nevents: Ir\nsummary: 6012\n") == 6012


def test_a_file_without_a_total_is_no_dump() -> None:
    with pytest.raises(ValueError, match="no total"):
        total_of("events: Ir\n")


def test_dumps_come_in_the_order_they_were_made_and_without_the_last(tmp_path: Path) -> None:
    for name in ("out", "out.2", "out.10", "out.1", "page"):
        (tmp_path / name).touch()
    assert [path.name for path in dumps(tmp_path)] == ["out.1", "out.2", "out.10"]


def test_every_path_is_taken_between_marks(tmp_path: Path) -> None:
    taken: list[int] = []
    marks: list[int] = []
    names = take(
        {"one": lambda: taken.append(1), "two": lambda: taken.append(2)},
        lambda: marks.append(len(taken)),
    )
    assert names == ["one", "two"]
    first, second = marks[:3], marks[3:]
    for each in (first, second):
        assert [b - a for a, b in pairwise(each)] == [TIMES, 2 * TIMES]


def test_every_hot_path_can_be_taken_again_and_again(tmp_path: Path) -> None:
    for path in paths(tmp_path).values():
        for _ in range(3):
            path()
