import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.vm.side_by_side import side_by_side


def test_all_pieces_are_done() -> None:
    assert sorted(side_by_side([partial(int, text) for text in "3142"], 2)) == [1, 2, 3, 4]


def test_so_many_pieces_are_under_way_at_once() -> None:
    met = threading.Barrier(3, timeout=30)
    assert len(list(side_by_side([met.wait] * 6, 3))) == 6


def test_what_a_piece_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(side_by_side([partial(int, "x")], 2))


def test_who_leaves_early_does_not_wait_for_the_rest() -> None:
    never = threading.Event()
    pieces: list[Callable[[], bool]] = [partial(bool, True), never.wait]
    assert next(side_by_side(pieces, 2)) is True
    never.set()
