"""What is lowered, what is somebody else's, and what is put back."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.mps.control import Control, MpsError
from controller.mps.limit import (
    ForeignError,
    Held,
    foreign,
    hold,
    parse_held,
    release,
    seen,
    to_lower,
    to_restore,
)

from .daemon import Daemon

PLACES = st.dictionaries(
    st.sampled_from(["1", "2", "3"]), st.integers(1, 100).map(float), max_size=3
)


def held_of(before: dict[str, float], percent: float = 30) -> Held:
    return Held("/run/mps-batch", "i", percent, before)


@given(st.integers(1, 100), st.integers(1, 100).map(float), PLACES)
def test_what_is_lowered_is_put_back_and_nothing_is_ever_raised(
    percent: int, default: float, servers: dict[str, float]
) -> None:
    own = {"default": default, **servers}
    held = held_of(own, float(percent))
    lowered = own | dict.fromkeys(to_lower(held, own), float(percent))
    assert all(lowered[place] <= value for place, value in own.items())
    assert all(value <= percent or value == own[place] for place, value in lowered.items())
    assert foreign(held, lowered) == {}
    assert {**lowered, **to_restore(held, lowered)} == own


def test_a_server_that_started_under_the_limit_gets_the_default_of_before() -> None:
    held = seen(held_of({"default": 80}), {"default": 30, "7": 30, "8": 100})
    assert held.before == {"default": 80, "7": 80, "8": 100}
    assert to_restore(held_of({"default": 80}), {"default": 30, "9": 30}) == {
        "default": 80,
        "9": 80,
    }


def test_a_server_that_has_ended_is_forgotten() -> None:
    held = seen(held_of({"default": 80, "7": 50}), {"default": 30})
    assert held.before == {"default": 80}


def test_another_value_where_we_lowered_is_somebody_else_s() -> None:
    held = held_of({"default": 100, "7": 20})
    assert foreign(held, {"default": 50, "7": 25}) == {"default": 50}
    assert foreign(held, {"default": 30.0, "7": 20}) == {}


def test_it_is_persisted_before_the_first_write(daemon: Daemon) -> None:
    daemon.set(default=100, servers={"4242": 60.0})
    at_saving: list[tuple[Held, float]] = []
    hold(Control(daemon.directory), 30, None, lambda held: at_saving.append((held, daemon.default)))
    ((held, default),) = at_saving
    assert default == 100
    assert held.before == {"default": 100, "4242": 60}
    assert (daemon.default, daemon.servers) == (30, {"4242": 30})


def test_held_and_released_everything_is_as_it_was(daemon: Daemon) -> None:
    daemon.set(default=80, servers={"1": 100.0, "2": 10.0})
    control = Control(daemon.directory)
    held = hold(control, 30, None, lambda _: None)
    daemon.set(servers={**daemon.servers, "3": 30.0})
    held = hold(control, 30, held, lambda _: None)
    assert release(control, held) == "default 30 → 80, 1 30 → 100, 3 30 → 80"
    assert (daemon.default, daemon.servers) == (80, {"1": 100, "2": 10, "3": 80})


def test_somebody_else_s_value_ends_it_and_stays(daemon: Daemon) -> None:
    daemon.set(servers={"1": 100.0})
    control = Control(daemon.directory)
    held = hold(control, 30, None, lambda _: None)
    daemon.set(default=55)
    with pytest.raises(ForeignError, match="default is 55%"):
        hold(control, 30, held, lambda _: None)
    assert release(control, held) == "1 30 → 100; left: default is 55%"
    assert (daemon.default, daemon.servers) == (55, {"1": 100})


def test_a_restarted_daemon_is_begun_with_anew_and_owes_nothing(daemon: Daemon) -> None:
    control = Control(daemon.directory)
    first = hold(control, 30, None, lambda _: None)
    daemon.start(pid=4001, default=90)
    assert "restarted" in release(control, first)
    assert daemon.default == 90
    second = hold(control, 30, first, lambda _: None)
    assert (second.before, daemon.default) == ({"default": 90}, 30)


def test_a_daemon_that_is_gone_took_the_limit_with_it(daemon: Daemon) -> None:
    control = Control(daemon.directory)
    held = hold(control, 30, None, lambda _: None)
    daemon.stop()
    assert "gone" in release(control, held)


def test_a_percentage_that_is_taken_and_not_set_is_refused(daemon: Daemon) -> None:
    daemon.set(ignores=["set_default_active_thread_percentage"])
    with pytest.raises(MpsError, match="did not set it: default is 100%"):
        hold(Control(daemon.directory), 30, None, lambda _: None)


@given(PLACES, st.integers(1, 100).map(float))
def test_a_held_limit_survives_its_file(servers: dict[str, float], default: float) -> None:
    held = held_of({"default": default, **servers})
    assert parse_held(json.dumps(asdict(held))) == held


@pytest.mark.parametrize(
    "text",
    [
        "", "3", "{}", "[]", json.dumps({**asdict(held_of({"7": 3.0}))}),
        json.dumps({**asdict(held_of({"default": 300.0}))}),
        json.dumps({**asdict(held_of({"default": 3.0})), "before": 3}),
    ],
)  # fmt: skip
def test_nonsense_is_no_held_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_held(text)
