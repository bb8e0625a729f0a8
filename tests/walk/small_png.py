"""Screenshots small enough for a repository: 255 colours and zlib's best, by numpy alone.

https://www.w3.org/TR/png-3/ has the format. What a browser writes has 8 bits a channel and is not
interlaced; nothing else is read.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
COLOURS: Final = 255
_CHANNELS: Final = {2: 3, 6: 4}
_RGB: Final = 3
_PALETTE: Final = 3

Pixels = NDArray[np.uint8]


def smaller(png: bytes) -> bytes:
    """The same picture with at most `COLOURS` colours, the rarer ones as the nearest of those."""
    pixels = decoded(png)
    height, width, _ = pixels.shape
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    kept = found[np.argsort(-counts)[:COLOURS]]
    nearest = _nearest(_channels(found), _channels(kept))
    rows = nearest[places.reshape(-1)].reshape(height, width).astype(np.uint8)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    return b"".join(
        [
            SIGNATURE,
            _chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, _PALETTE, 0, 0, 0)),
            _chunk(b"PLTE", _channels(kept).astype(np.uint8).tobytes()),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def decoded(png: bytes) -> Pixels:
    """The pixels, height by width by red, green and blue; `ValueError` for another kind of PNG."""
    if not png.startswith(SIGNATURE):
        raise ValueError("not a PNG")
    chunks = list(_chunks(png))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">2I5B", dict(chunks)[b"IHDR"])
    if depth != 8 or kind not in _CHANNELS or interlaced:
        raise ValueError(f"a PNG of depth {depth} and type {kind} is not read")
    channels = _CHANNELS[kind]
    data = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    lines = np.frombuffer(data, np.uint8).reshape(height, 1 + width * channels)
    above = np.zeros(width * channels, np.uint8)
    rows = []
    for line in lines:
        above = _unfiltered(int(line[0]), line[1:], above, channels)
        rows.append(above)
    return np.stack(rows).reshape(height, width, channels)[:, :, :_RGB]


def _unfiltered(kind: int, line: Pixels, above: Pixels, step: int) -> Pixels:
    """A line as it was before its filter: none, sub, up, average or Paeth."""
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    if kind == 1:
        summed = np.cumsum(line.reshape(-1, step), axis=0, dtype=np.uint32)
        return (summed & 255).astype(np.uint8).reshape(-1)
    made = bytearray(len(line))
    up = above.tobytes()
    for at, value in enumerate(line.tobytes()):
        left = made[at - step] if at >= step else 0
        corner = up[at - step] if at >= step else 0
        guess = (left + up[at]) // 2 if kind == 3 else _paeth(left, up[at], corner)
        made[at] = (value + guess) & 255
    return np.frombuffer(bytes(made), np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))


def _nearest(colours: NDArray[Any], kept: NDArray[Any]) -> NDArray[Any]:
    """For each colour the place of the nearest of `kept`."""
    return np.concatenate(
        [
            np.abs(some[:, None, :] - kept[None, :, :]).sum(axis=2).argmin(axis=1)
            for some in np.array_split(colours, max(1, len(colours) // 512))
        ]
    )


def _channels(codes: NDArray[Any]) -> NDArray[np.int32]:
    return np.stack([codes >> 16 & 255, codes >> 8 & 255, codes & 255], axis=1).astype(np.int32)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        size, name = struct.unpack_from(">I4s", png, at)
        yield name, png[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body), name) + body + struct.pack(">I", zlib.crc32(name + body))
