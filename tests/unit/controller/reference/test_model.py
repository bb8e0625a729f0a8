import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reference.model import (
    EOS,
    VOCABULARY,
    Chunk,
    KvCache,
    Model,
    Shape,
    sample,
)

SHAPE = Shape(
    layers=2, width=32, heads=2, head_size=8, mlp_width=48, head_width=64, max_context=600
)
MODEL = Model(SHAPE, seed=1)
PROMPT = np.random.default_rng(2).integers(0, 256, 500)

Floats = npt.NDArray[np.float32]


def cache() -> KvCache:
    return KvCache(SHAPE, 600)


def logits_of(parts: list[npt.NDArray[np.int64]]) -> Floats:
    kept = cache()
    for part in parts[:-1]:
        MODEL.forward([Chunk(kept, part, sample=False)])
    return MODEL.forward([Chunk(kept, parts[-1], sample=True)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 499), max_size=6, unique=True))
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(cuts: list[int]) -> None:
    whole = logits_of([PROMPT])
    assert np.allclose(logits_of(np.split(PROMPT, sorted(cuts))), whole, rtol=1e-3, atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_sequences_in_one_batch_get_what_each_gets_alone(lengths: list[int]) -> None:
    together = [cache() for _ in lengths]
    chunks = [
        Chunk(kept, PROMPT[:length], sample=True)
        for kept, length in zip(together, lengths, strict=True)
    ]
    first = MODEL.forward(chunks)
    tokens = sample(first, np.zeros(len(lengths), np.float32), np.random.default_rng(0))
    second = MODEL.forward(
        [Chunk(kept, tokens[index : index + 1], sample=True) for index, kept in enumerate(together)]
    )
    for index, length in enumerate(lengths):
        alone = cache()
        mine = MODEL.forward([Chunk(alone, PROMPT[:length], sample=True)])
        assert np.allclose(first[index], mine[0], rtol=1e-3, atol=1e-3)
        mine = MODEL.forward([Chunk(alone, tokens[index : index + 1], sample=True)])
        assert np.allclose(second[index], mine[0], rtol=1e-3, atol=1e-3)
        assert alone.length == together[index].length == length + 1


def test_only_sampled_chunks_have_logits() -> None:
    chunks = [Chunk(cache(), PROMPT[:5], sample=index == 1) for index in range(3)]
    assert MODEL.forward(chunks).shape == (1, VOCABULARY)
    assert MODEL.forward([Chunk(cache(), PROMPT[:5], sample=False)]).shape == (0, VOCABULARY)


def test_every_earlier_token_matters_and_no_later_one() -> None:
    base = logits_of([PROMPT[:200]])
    changed = PROMPT[:200].copy()
    changed[3] = (changed[3] + 1) % 256
    assert not np.allclose(logits_of([changed]), base, rtol=1e-3, atol=1e-3)
    kept = cache()
    MODEL.forward([Chunk(kept, PROMPT[:300], sample=False)])
    alone = cache()
    MODEL.forward([Chunk(alone, PROMPT[:200], sample=False)])
    assert np.allclose(kept.keys[:, :, :200], alone.keys[:, :, :200], rtol=1e-3, atol=1e-3)


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    chunk = PROMPT[:9]
    first, same, other = (
        Model(SHAPE, seed).forward([Chunk(cache(), chunk, sample=True)]) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, same)
    assert not np.allclose(first, other)


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = np.array([[0, 3, 1], [5, 3, 1]], np.float32)
    assert sample(logits, np.zeros(2, np.float32), np.random.default_rng(0)).tolist() == [1, 0]


def test_sampling_follows_the_softmax() -> None:
    random = np.random.default_rng(0)
    logits = np.log(np.array([[0.7, 0.2, 0.1]], np.float32)).repeat(20_000, axis=0)
    drawn = sample(logits, np.ones(20_000, np.float32), random)
    assert np.bincount(drawn) / 20_000 == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    halved = sample(logits, np.full(20_000, 0.5, np.float32), random)
    expected = np.array([0.49, 0.04, 0.01]) / 0.54
    assert np.bincount(halved) / 20_000 == pytest.approx(expected, abs=0.02)


def test_sampling_leaves_the_logits_alone() -> None:
    logits = np.ones((2, 3), np.float32)
    sample(logits, np.ones(2, np.float32), np.random.default_rng(0))
    assert np.array_equal(logits, np.ones((2, 3), np.float32))


def test_only_printable_text_and_its_end_are_spoken() -> None:
    logits = MODEL.forward([Chunk(cache(), PROMPT[:n], sample=True) for n in range(1, 60)])
    drawn = sample(logits, np.full(59, 2, np.float32), np.random.default_rng(0))
    assert {int(token) for token in drawn} <= {*range(32, 127), EOS}
