import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.contract import (
    ERRORS,
    KNOBS,
    ContractError,
    Hello,
    Knob,
    decode,
    encode,
    parse_hello,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
messages = st.dictionaries(st.text(), plain, max_size=6)


def refusal_of(act: Callable[[], object]) -> str | None:
    try:
        act()
    except ContractError as error:
        return error.code
    return None


def knob_of(name: str, minimum: int, start: int, maximum: int) -> Knob:
    return Knob(name, minimum, maximum, start, KNOBS[name])


hellos = st.builds(
    Hello,
    engine=st.text(),
    version=st.text(),
    instance=st.text(),
    pid=st.integers(1, 2**22),
    knobs=st.lists(
        st.tuples(
            st.sampled_from(sorted(KNOBS)),
            st.lists(st.integers(0, 10**6), min_size=3, max_size=3).map(sorted),
        )
    ).map(lambda drawn: {name: knob_of(name, *sizes) for name, sizes in drawn}),
    graph_sizes=st.lists(st.integers(1, 512), max_size=5).map(tuple),
    page=st.none() | st.text(),
    max_lease_ms=st.integers(1, 60_000),
)


@settings(deadline=None)
@given(messages)
def test_a_message_comes_back_from_its_line(message: dict[str, Any]) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@settings(deadline=None)
@given(st.binary())
def test_no_line_does_worse_than_bad_json(line: bytes) -> None:
    assert refusal_of(lambda: decode(line)) in {None, "bad_json"}


def test_a_line_nested_without_end_is_bad_json() -> None:
    with pytest.raises(ContractError):
        decode(b'{"a":' + b"[" * 60_000)


@settings(deadline=None)
@given(hellos)
def test_a_hello_comes_back_from_the_wire(hello: Hello) -> None:
    assert parse_hello(json.loads(json.dumps(hello.as_dict()))) == hello


@settings(deadline=None)
@given(hellos, st.sampled_from(sorted(Hello("", "", "", 1, {}).as_dict())), plain)
def test_a_hello_with_any_field_replaced_is_read_or_refused(
    hello: Hello, name: str, value: object
) -> None:
    refusal = refusal_of(lambda: parse_hello({**hello.as_dict(), name: value}))
    assert refusal in {None, *ERRORS}


@settings(deadline=None)
@given(hellos, st.sampled_from(["min", "max", "start", "unit", "cost"]), plain)
def test_a_knob_with_any_field_replaced_is_read_or_refused(
    hello: Hello, name: str, value: object
) -> None:
    fields = hello.as_dict()
    for knob in fields["knobs"].values():
        knob[name] = value
    if refusal_of(lambda: parse_hello(fields)) is None:
        knobs = parse_hello(fields).knobs
        assert all(knob.minimum <= knob.start <= knob.maximum for knob in knobs.values())


def test_a_newer_engine_s_knobs_are_left_out() -> None:
    fields = Hello("e", "1", "i", 1, {"max_running": knob_of("max_running", 1, 8, 8)}).as_dict()
    fields["knobs"]["max_dreams"] = {"min": 0, "max": 1, "start": 0}
    assert list(parse_hello(fields).knobs) == ["max_running"]


@pytest.mark.parametrize("versions", [None, 1, [], [2], "1"])
def test_a_hello_of_another_version_is_refused(versions: object) -> None:
    fields = {**Hello("e", "1", "i", 1, {}).as_dict(), "protocol": versions}
    with pytest.raises(ContractError, match="protocol must be a list with 1 in it"):
        parse_hello(fields)


@settings(deadline=None)
@given(plain | st.floats())
def test_a_checked_value_is_within_its_knob(value: object) -> None:
    knob = knob_of("max_running", 1, 64, 64)
    refusal = refusal_of(lambda: knob.check(value))
    assert refusal in {None, "bad_request", "out_of_range"}
    if refusal is None:
        checked = knob.check(value)
        assert checked == value
        assert type(checked) is int
        assert 1 <= checked <= 64


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "out_of_range"),
        (65, "out_of_range"),
        (10**300, "out_of_range"),
        (float("inf"), "out_of_range"),
        (float("nan"), "out_of_range"),
        (1.5, "bad_request"),
        (True, "bad_request"),
        ("8", "bad_request"),
        (None, "bad_request"),
    ],
)
def test_a_wrong_value_has_its_code(value: object, code: str) -> None:
    with pytest.raises(ContractError) as caught:
        knob_of("max_running", 1, 64, 64).check(value)
    assert caught.value.code == code
    assert caught.value.as_dict()["knob"] == "max_running"


def test_a_ratio_may_be_a_fraction() -> None:
    assert Knob("kv_cache_ratio", 0.1, 1, 1, "ratio").check(0.25) == 0.25


def test_a_start_value_that_is_no_whole_number_can_be_set_again_and_no_other_such_value() -> None:
    window = Knob("batch_window_ms", 0, 200, 2.5, "ms", "reload")
    assert window.check(2.5) == 2.5
    with pytest.raises(ContractError, match="whole number"):
        window.check(7.5)
