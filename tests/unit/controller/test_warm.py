import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.contract import Hello, Knob
from controller.engines.page import Step
from controller.overrun import UNKNOWN
from controller.step_model import StepModel, learn
from controller.trim import HIGHEST, LOWEST, Trim
from controller.warm import (
    Learnt,
    fingerprint,
    model_of,
    note,
    parse_learnt,
    prompt_class,
    trim_of,
)

KNOBS: Final = {"max_running": Knob("max_running", 1, 64, 64, "requests")}
HELLO: Final = Hello("vllm", "0.32", "a", 17, KNOBS)


def step(index: int, prefill: int, base_ms: float = 8.0) -> Step:
    ms = base_ms + 0.06 * prefill + 0.4 * 8 + 0.5
    return Step(index, index * 10**8, int(ms * 1e6), prefill, 8, 1000)


def trained(base_ms: float = 8.0) -> StepModel:
    steps = [step(index, 40 * (index % 7), base_ms) for index in range(20, 220)]
    return learn(StepModel(), steps, disturbed=False)


def remembered(model: StepModel | None = None, margin: float = 0.8) -> Learnt:
    learnt = note(None, model or trained(), Trim(margin), 7)
    assert learnt is not None
    return learnt


def test_a_restart_of_the_same_engine_has_the_same_fingerprint() -> None:
    again = replace(HELLO, instance="b", pid=18)
    assert fingerprint("chat", HELLO) == fingerprint("chat", again)


@pytest.mark.parametrize(
    "other",
    [
        replace(HELLO, version="0.33"),
        replace(HELLO, engine="sglang"),
        replace(HELLO, knobs={"max_running": Knob("max_running", 1, 32, 32, "requests")}),
        replace(HELLO, graph_sizes=(8, 16)),
    ],
)
def test_another_engine_has_another(other: Hello) -> None:
    assert fingerprint("chat", HELLO) != fingerprint("chat", other)


def test_another_target_has_another() -> None:
    assert fingerprint("chat", HELLO) != fingerprint("code", HELLO)


def test_a_model_that_is_not_trusted_is_not_remembered() -> None:
    assert note(None, StepModel(), Trim(), 7) is None
    before = remembered()
    assert note(before, StepModel(), Trim(), 7) is before


def test_what_did_not_change_is_not_remembered_anew() -> None:
    before = remembered()
    model = model_of(before)
    assert note(before, model, Trim(0.805), 7) is before
    assert note(before, model, Trim(0.85), 7) is not before
    assert note(before, trained(base_ms=9.0), Trim(0.8), 7) is not before


def test_a_remembered_model_is_trusted_at_once_and_predicts_the_same() -> None:
    model = trained()
    again = model_of(remembered(model))
    assert again.trusted
    assert again.predict_ms(100, 8, 1000) == model.predict_ms(100, 8, 1000)


def test_a_remembered_model_that_fits_no_more_loses_its_trust_and_learns() -> None:
    model = model_of(remembered())
    steps = [step(index, 40 * (index % 7), base_ms=80) for index in range(20, 60)]
    trusts = []
    for each in steps:
        model = learn(model, [each], disturbed=False)
        trusts.append(model.trusted)
    assert not all(trusts)
    for index in range(60, 3000):
        model = learn(model, [step(index, 40 * (index % 7), base_ms=80)], disturbed=False)
    assert model.trusted
    assert model.predict_ms(100, 8, 1000) == pytest.approx(89.7, rel=0.05)


def test_a_class_of_prompts_has_its_own_margin() -> None:
    learnt = note(remembered(margin=0.8), trained(base_ms=9.0), Trim(0.9), 10)
    assert learnt is not None
    assert trim_of(learnt, 7).margin == 0.8
    assert trim_of(learnt, 10).margin == 0.9


def test_a_class_that_was_never_seen_takes_the_nearest() -> None:
    assert trim_of(remembered(margin=0.8), 12).margin == 0.8
    assert trim_of(replace(remembered(), margins={}), 12) == Trim()


@pytest.mark.parametrize(("mean", "expected"), [(0, 0), (1, 0), (2, 1), (255, 7), (256, 8)])
def test_classes_are_powers_of_two(mean: float, expected: int) -> None:
    assert prompt_class(mean) == expected


def test_it_survives_a_file() -> None:
    learnt = remembered()
    assert parse_learnt(json.loads(json.dumps(learnt.as_dict()))) == learnt


def test_what_an_earlier_version_left_has_no_spread_and_is_known_all_the_same() -> None:
    raw = remembered().as_dict()
    del raw["spread"]
    learnt = parse_learnt(raw)
    assert learnt is not None
    assert learnt.spread == UNKNOWN


def test_how_uneven_the_steps_are_is_remembered() -> None:
    model = replace(trained(), spread=0.07)
    assert model_of(remembered(model)).spread == 0.07


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)
fields = st.sampled_from(["theta", "covariance", "error", "margins"])


@given(json_values)
def test_what_is_no_memory_is_none(raw: Any) -> None:
    assert parse_learnt(raw) is None


@given(fields, json_values)
def test_a_broken_field_never_raises_and_never_leaves_the_range(name: str, value: Any) -> None:
    learnt = parse_learnt(remembered().as_dict() | {name: value})
    if learnt is not None:
        assert all(LOWEST <= margin <= HIGHEST for margin in learnt.margins.values())
        assert 0 <= learnt.error <= 1
