import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fragmentation import Block, gap_score, gaps, scatter, unavailable

blocks = st.lists(st.builds(Block, st.integers(0, 1500), st.integers(1, 300)), max_size=20)


@pytest.mark.parametrize(
    ("allocated", "free"),
    [
        ([], [1000]),
        ([Block(0, 1000)], []),
        ([Block(0, 100)], [900]),
        ([Block(900, 100)], [900]),
        ([Block(400, 200)], [400, 400]),
        ([Block(600, 100), Block(100, 100)], [100, 400, 300]),
        ([Block(100, 300), Block(200, 100)], [100, 600]),
        ([Block(900, 500)], [900]),
        ([Block(1200, 10)], [1000]),
    ],
)
def test_gaps_are_what_lies_between(allocated: list[Block], free: list[int]) -> None:
    assert gaps(allocated, 1000) == free


def test_a_memory_of_no_size_has_no_map() -> None:
    with pytest.raises(ValueError, match="could not look for gaps: the memory has 0 bytes"):
        gaps([], 0)


@pytest.mark.parametrize(
    ("sizes", "score", "scattered", "lost"),
    [
        ([1000], 1, 0, 0),
        ([], 0, 0, 1),
        ([500], 0.25, 0, 0.5),
        ([50] * 10, 0.025, 0.9, 0.95),
        ([400, 100], 0.17, 0.2, 0.6),
    ],
)
def test_the_three_measures(sizes: list[int], score: float, scattered: float, lost: float) -> None:
    assert gap_score(sizes, 1000) == pytest.approx(score)
    assert scatter(sizes) == pytest.approx(scattered)
    assert unavailable(sizes, 1000) == pytest.approx(lost)


@given(blocks)
def test_free_and_allocated_are_all_there_is(allocated: list[Block]) -> None:
    used = {byte for start, size in allocated for byte in range(start, min(start + size, 1000))}
    assert sum(gaps(allocated, 1000)) == 1000 - len(used)


@given(blocks)
def test_all_measures_are_shares(allocated: list[Block]) -> None:
    sizes = gaps(allocated, 1000)
    for share in (gap_score(sizes, 1000), scatter(sizes), unavailable(sizes, 1000)):
        assert 0 <= share <= 1
