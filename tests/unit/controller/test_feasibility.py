import math
import os

import pytest

from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.feasibility import EVERYTHING, Room, room_of, within
from controller.memory_sentinel import Bound, MemoryView, SentinelMemory

MIB = 1 << 20
KNOBS = {
    "max_running": Knob("max_running", 1, 64, 64, "requests"),
    "max_batched_tokens": Knob("max_batched_tokens", 16, 2048, 2048, "tokens"),
}
NONE = SentinelMemory()


def test_nothing_known_is_nothing_in_the_way() -> None:
    assert room_of(MemoryView(), NONE, None) == EVERYTHING
    assert room_of(MemoryView(), NONE, EngineNow(running=3)).running == math.inf


def test_the_check_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file is read")

    for name in ("open", "pread", "read", "stat"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr("builtins.open", refuse)
    view = MemoryView((Bound("/a", 1000 * MIB, 100 * MIB),), per_request=10.0 * MIB)
    room = room_of(view, NONE, EngineNow(running=10, kv_used=5_000, kv_total=10_000))
    point, _ = within(room, {"max_running": 40}, {"max_running": 12}, KNOBS)
    monkeypatch.undo()
    assert point == {"max_running": 15}


def test_as_many_more_fit_as_the_kv_cache_holds_of_their_size() -> None:
    room = room_of(MemoryView(), NONE, EngineNow(running=10, kv_used=5_000, kv_total=10_000))
    # up to the watermark of 95%: nine more of 500 tokens
    assert room.running == 19
    assert "KV cache has room for 19 requests of 500 tokens" in room.running_why()
    assert room.tokens == 5_000


def test_as_many_more_fit_as_the_cgroup_has_memory_for() -> None:
    view = MemoryView((Bound("/a", 1000 * MIB, 100 * MIB),), per_request=10.0 * MIB)
    engine = EngineNow(running=10, kv_used=5_000, kv_total=10_000)
    room = room_of(view, NONE, engine)
    # a twentieth of the limit is kept free
    assert room.running == 15
    assert "memory has room for 15 requests of 10.0 MiB" in room.running_why()


def test_in_danger_nothing_is_raised() -> None:
    view = MemoryView((Bound("/a", 1000 * MIB, 100 * MIB, growth=50.0 * MIB),))
    room = room_of(view, NONE, EngineNow(running=10))
    point, why = within(
        room,
        {"max_running": 40, "max_batched_tokens": 900},
        {"max_running": 20, "max_batched_tokens": 800},
        KNOBS,
    )
    assert point == {"max_running": 20, "max_batched_tokens": 800}
    assert "max_running is not raised to 40: memory runs short: 100 MiB" in why
    assert "max_batched_tokens is not raised to 900" in why


def test_a_raise_is_clipped_to_what_fits_and_says_why() -> None:
    room = Room(running=30, running_why=lambda: "there is room for 30")
    point, why = within(room, {"max_running": 64}, {"max_running": 20}, KNOBS)
    assert point == {"max_running": 30}
    assert why == "max_running is not raised to 64: there is room for 30"


def test_giving_a_knob_back_is_a_raise_too() -> None:
    room = Room(running=30, running_why=lambda: "there is room for 30")
    before = {"max_running": 40.0}
    assert within(room, {"max_running": 64}, before, KNOBS)[0] == {"max_running": 40}


def test_what_is_in_force_and_cuts_are_left_alone() -> None:
    room = Room(running=5, tokens=10)
    for point in ({"max_running": 64}, {"max_running": 50}, {"max_batched_tokens": 64}, {}):
        assert within(room, point, {}, KNOBS) == (point, "")


def test_a_cap_cuts() -> None:
    room = Room(cap=12, cap_why="3 MiB are left")
    point, why = within(room, {"max_running": 64}, {}, KNOBS)
    assert point == {"max_running": 12}
    assert why == "max_running is kept at 12: 3 MiB are left"
    assert within(room, {"max_running": 8}, {}, KNOBS) == ({"max_running": 8}, "")


def test_what_is_put_back_is_put_back_whole() -> None:
    room = Room(running=5, restore=64)
    assert within(room, {"max_running": 64}, {"max_running": 12}, KNOBS)[0] == {"max_running": 64}


def test_an_engine_without_the_knobs_has_nothing_to_clip() -> None:
    room = Room(running=1, tokens=1, cap=1)
    assert within(room, {"window_ms": 4}, {}, {}) == ({"window_ms": 4}, "")
