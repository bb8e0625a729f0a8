"""A small decoder that really computes: byte vocabulary, attention over a KV cache, an MLP.

Its weights are random, so its text means nothing; its times are the point. They have the shape of
a real engine's: a step costs a fixed amount (the weights are read once whatever the batch), plus
an amount per sequence, per prompt token and per cached token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]

BOS: Final = 256
EOS: Final = 257
VOCABULARY: Final = 258
"""Tokens 0…255 are bytes, 256 begins a text, 257 ends one."""

_QUERY_BLOCK: Final = 128
"""Queries attended at once: causal attention skips what lies after the block."""

_SCORE_SCALE: Final = 6.0
"""Queries and keys are unit vectors, so scores are within ±6 and exp needs no maximum taken off."""

_HEAD_ROWS: Final = 4
"""The head computes at least this many rows: OpenBLAS takes longer for 2 rows than for 4."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. `width` is the size of a token's vector and is even.

    `head_width` is the hidden size of the output head, which runs only where a token is sampled:
    it stands in for the large vocabulary of a real model, and sets the fixed cost of a step.
    """

    layers: int = 2
    width: int = 256
    heads: int = 2
    head_size: int = 32
    mlp_width: int = 640
    head_width: int = 10240
    max_context: int = 4096


class KvCache:
    """Keys and values of one sequence; memory is touched only as far as `length` grows."""

    __slots__ = ("keys", "length", "values")

    def __init__(self, shape: Shape, capacity: int) -> None:
        """Room for `capacity` tokens."""
        size = (shape.layers, shape.heads, capacity, shape.head_size)
        self.keys = np.empty(size, np.float32)
        self.values = np.empty(size, np.float32)
        self.length = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in this step, after those in `cache`.

    `sample` says whether the logits of the last token are wanted.
    """

    cache: KvCache
    tokens: Tokens
    sample: bool


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Floats
    out: Floats
    up: Floats
    down: Floats


class Model:
    """A decoder with seeded random weights: the same seed and shape give the same model."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        random = np.random.default_rng(seed)

        def weights(rows: int, columns: int) -> Floats:
            scale = np.float32(rows**-0.5)
            return random.standard_normal((rows, columns), dtype=np.float32) * scale

        inner = shape.heads * shape.head_size
        self._embedding = weights(VOCABULARY, shape.width) * np.float32(VOCABULARY**0.5)
        self._positions = _positions(shape.max_context, shape.width)
        self._layers = [
            _Layer(
                weights(shape.width, 3 * inner),
                weights(inner, shape.width),
                weights(shape.width, shape.mlp_width),
                weights(shape.mlp_width, shape.width),
            )
            for _ in range(shape.layers)
        ]
        self._head_up = weights(shape.width, shape.head_width)
        self._head_down = weights(shape.head_width, VOCABULARY)
        self._head_bias = _printable_bias()

    def forward(self, chunks: Sequence[Chunk]) -> Floats:
        """Compute `chunks`, append them to their caches, return the logits wanted.

        One row of `VOCABULARY` a chunk with `sample`, in their order. Everything but attention is
        one matrix product for all chunks together. A chunk must fit its cache.
        """
        spans = []
        position_parts = []
        row = 0
        for chunk in chunks:
            spans.append((chunk.cache, row, row + len(chunk.tokens)))
            row += len(chunk.tokens)
            first = chunk.cache.length
            position_parts.append(self._positions[first : first + len(chunk.tokens)])
        x = self._embedding[np.concatenate([chunk.tokens for chunk in chunks])]
        x += np.concatenate(position_parts)
        for index, layer in enumerate(self._layers):
            x += self._attend(index, _normalised(x) @ layer.qkv, spans) @ layer.out
            hidden = _normalised(x) @ layer.up
            np.maximum(hidden, 0, out=hidden)
            x += hidden @ layer.down
        for cache, begin, end in spans:
            cache.length += end - begin
        last = [end - 1 for chunk, (_, _, end) in zip(chunks, spans, strict=True) if chunk.sample]
        return self._logits(x[last])

    def _attend(self, index: int, qkv: Floats, spans: Sequence[tuple[KvCache, int, int]]) -> Floats:
        """Attention of each span over its own cache, after adding its keys and values to it."""
        rows = qkv.shape[0]
        heads, size = self.shape.heads, self.shape.head_size
        split = qkv.reshape(rows, 3, heads, size)
        _to_unit(split[:, :2])
        queries, keys, values = split.transpose(1, 2, 0, 3)
        queries *= np.float32(_SCORE_SCALE)
        out = np.empty((rows, heads, size), np.float32)
        by_head = out.transpose(1, 0, 2)
        for cache, begin, end in spans:
            before = cache.length
            after = before + end - begin
            cache.keys[index, :, before:after] = keys[:, begin:end]
            cache.values[index, :, before:after] = values[:, begin:end]
            for first in range(begin, end, _QUERY_BLOCK):
                last = min(first + _QUERY_BLOCK, end)
                seen = before + last - begin
                scores = queries[:, first:last] @ cache.keys[index, :, :seen].transpose(0, 2, 1)
                np.exp(scores, out=scores)
                if last - first > 1:
                    scores[:, :, seen - (last - first) :] *= _CAUSAL[: last - first, : last - first]
                weighted = scores @ cache.values[index, :, :seen]
                weighted /= scores.sum(-1, keepdims=True)
                by_head[:, first:last] = weighted
        return out.reshape(rows, heads * size)

    def _logits(self, x: Floats) -> Floats:
        """The output head, for sampled positions only."""
        rows = len(x)
        if rows == 0:
            return np.empty((0, VOCABULARY), np.float32)
        if rows < _HEAD_ROWS:
            x = np.concatenate([x, np.zeros((_HEAD_ROWS - rows, x.shape[1]), np.float32)])
        hidden = _normalised(x) @ self._head_up
        np.maximum(hidden, 0, out=hidden)
        logits = np.empty((len(x), VOCABULARY), np.float32)
        np.matmul(hidden, self._head_down, out=logits)
        logits += self._head_bias
        return logits[:rows]


def sample(logits: Floats, temperatures: Floats, random: np.random.Generator) -> Tokens:
    """One token a row: the likeliest where the temperature is 0, else drawn from the softmax.

    Drawing is by the Gumbel-max trick: argmax(logits / T + Gumbel noise) is distributed as
    softmax(logits / T).
    """
    drawn = temperatures > 0
    if drawn.any():
        logits = logits.copy()
        logits /= np.where(drawn, temperatures, 1)[:, None]
        logits[drawn] += random.gumbel(size=(int(drawn.sum()), logits.shape[1]))
    tokens: Tokens = np.argmax(logits, axis=-1)
    return tokens


_CAUSAL: Final = np.tri(_QUERY_BLOCK, dtype=np.float32)


def _normalised(x: Floats) -> Floats:
    """Rows scaled to a root mean square of 1 (RMSNorm without a gain)."""
    scale = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1]) + np.float32(1e-6)
    normalised: Floats = x / np.sqrt(scale)[:, None]
    return normalised


def _to_unit(x: Floats) -> None:
    """Scale the last axis to length 1, in place."""
    x /= np.sqrt(np.einsum("...i,...i->...", x, x) + np.float32(1e-6))[..., None]


def _positions(count: int, width: int) -> Floats:
    """Sinusoids as in 'Attention Is All You Need', section 3.5."""
    angle = np.arange(count)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


def _printable_bias() -> Floats:
    """Keep random weights from speaking bytes that are no text: only ASCII 32…126 and the end."""
    bias = np.full(VOCABULARY, -1e9, np.float32)
    bias[32:127] = 0
    bias[EOS] = 0
    return bias
