"""Pictures made small: every filter is undone, and colours stay or come near."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tests.documented import ROOT
from tests.walk.small_png import SIGNATURE, Pixels, decoded, smaller

IMAGES = sorted((ROOT / "docs" / "images").glob("*.png"))
LARGEST = 150_000


def paeth(left: int, up: int, corner: int) -> int:
    """The one of the three that is nearest to left + up - corner, the first of equals."""
    return min((left, up, corner), key=lambda each: abs(left + up - corner - each))


def written(pixels: Pixels, kinds: list[int]) -> bytes:
    """A PNG of these pixels, its lines filtered by these kinds in turn."""

    def chunk(name: bytes, body: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I4s", len(body), name) + body + end

    height, width, channels = pixels.shape
    lines, above = [], [0] * (width * channels)
    for number, row in enumerate(pixels.reshape(height, -1).tolist()):
        kind = kinds[number % len(kinds)]
        line = []
        for at, value in enumerate(row):
            left = row[at - channels] if at >= channels else 0
            corner = above[at - channels] if at >= channels else 0
            up = above[at]
            guesses = (0, left, up, (left + up) // 2, paeth(left, up, corner))
            line.append(value - guesses[kind] & 255)
        lines.append(bytes([kind, *line]))
        above = row
    head = struct.pack(">2I5B", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    body = zlib.compress(b"".join(lines))
    return SIGNATURE + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@settings(deadline=None)
@given(
    arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=8).map(lambda s: (*s, 3))),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_every_filter_is_undone(pixels: Pixels, kinds: list[int]) -> None:
    assert np.array_equal(decoded(written(pixels, kinds)), pixels)


def test_few_colours_stay_as_they_are_and_many_come_near() -> None:
    few = np.zeros((4, 4, 4), np.uint8)
    few[..., 0] = np.arange(16).reshape(4, 4) * 15
    small = smaller(written(few, [1]))
    assert small[25] == 3
    palette = small[small.index(b"PLTE") + 4 :][: 16 * 3]
    assert {tuple(palette[at : at + 3]) for at in range(0, 48, 3)} == {
        (15 * n, 0, 0) for n in range(16)
    }


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a PNG"):
        decoded(b"GIF89a")


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_a_screenshot_of_the_documents_is_small(path: Path) -> None:
    assert path.stat().st_size <= LARGEST
