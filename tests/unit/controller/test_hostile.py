"""Whatever an engine, its operator, the clock or the machine does, the controller ends up safe.

Safe is: the engine at its start values, or a lease that runs out; nothing sent that the engine does
not offer; no exception (which any test here would die of), and a line in the journal that says what
happened.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.actions import SetKnobs
from controller.core import GIVE_BACK_NS, IDLE_NS
from controller.cpu_limits import CpuView
from controller.engines.contract import Knob
from controller.engines.link import HELD_RETRY_NS, LEFT_ALONE_NS, OWNER
from controller.engines.page import EngineNow, PageWriter, Step
from controller.figures import CALM_NS, STALE_NS, Figures
from controller.loop import PAUSED_NS
from controller.policy_model import Engine, Match, Slo
from controller.recording import decide_batch_of
from controller.step_model import StepModel
from controller.watch import EngineWatch
from controller.watch_status import status_of

from .rig import Kernel
from .scene import KNOBS, LEASE_MS, TICK_NS, EngineEnd, Scene, scene
from .situations import MS, SECOND

SMALLER: Final = KNOBS | {
    "max_running": Knob("max_running", 1, 6, 6, "requests"),
    "max_batched_tokens": Knob("max_batched_tokens", 16, 128, 128, "tokens"),
}
STALE_S: Final = STALE_NS / SECOND
CALM_S: Final = CALM_NS / SECOND
GIVE_BACK_S: Final = GIVE_BACK_NS / SECOND
ALONE_S: Final = LEFT_ALONE_NS / SECOND


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Scene]:
    """A loop that holds a point it decided by a model it trusts."""
    with scene(tmp_path) as made:
        made.control()
        yield made


def only_released(held: Scene, since_ns: int) -> str:
    """Nothing was decided since then but to give back; why."""
    (decision,) = held.decisions(since_ns)
    assert {change["to"] for change in decision["action"]} == {"start"}
    assert held.acks()[decision["tag"]] == "applied"
    assert held.engine.at_start
    return str(decision["reason"])


# figures


def freeze(held: Scene) -> None:
    held.engine.frozen = True


def tear(held: Scene) -> None:
    held.engine.torn = True


def thaw(held: Scene) -> None:
    held.engine.frozen = held.engine.torn = False
    held.engine.garbled = lambda now: now


@pytest.mark.parametrize("stop", [freeze, tear])
def test_figures_that_stand_still_are_not_built_on_and_end_what_is_held(
    held: Scene, stop: Callable[[Scene], None]
) -> None:
    stop(held)
    began_ns = held.now_ns
    held.until(lambda: "stats_stale" in held.events(began_ns), STALE_S + 1)
    assert "though knobs were set since" in held.detail("stats_stale")
    held.run(0.3)
    assert held.status()["doubt"] == held.detail("stats_stale")
    told_ns = held.now_ns
    # something else now would be cured by a smaller batch, if that could be known
    held.engine.busy(running=30, waiting=30)
    held.run(GIVE_BACK_S + 1)
    assert only_released(held, told_ns) == "its figures have been in doubt for 10 s"
    held.run(60)
    assert held.engine.at_start
    assert held.events(told_ns + 1) == []


@pytest.mark.parametrize("stop", [freeze, tear])
def test_figures_that_move_again_are_built_on_again(
    held: Scene, stop: Callable[[Scene], None]
) -> None:
    stop(held)
    held.run(STALE_S + GIVE_BACK_S + 2)
    thaw(held)
    thawed_ns = held.now_ns
    held.until(lambda: "stats_back" in held.events(thawed_ns), CALM_S + 1)
    held.until(held.held, 5)
    held.run(0.3)
    assert held.status()["doubt"] == ""


def test_a_page_that_is_cut_short_is_done_without(held: Scene) -> None:
    os.truncate(held.engine.page.path, 100)
    held.engine.frozen = True
    began_ns = held.now_ns
    held.run(STALE_S + 1)
    assert held.events(began_ns) == ["stats_stale"]
    held.until(lambda: "engine_page" in held.events(began_ns), GIVE_BACK_S + 1)
    # what it shows over the socket is as good
    held.until(lambda: "stats_back" in held.events(began_ns), CALM_S + 1)
    held.until(held.held, 5)
    os.truncate(held.engine.page.path, 4096)


GARBAGE: Final[dict[str, Callable[[EngineNow], EngineNow]]] = {
    "all ones": lambda _: EngineNow(*(22 * [2**64 - 1])),
    "running 2**63": lambda now: replace(now, running=2**63),
    "more running than it was made for": lambda now: replace(now, running=65),
    "more cache than there is": lambda now: replace(now, kv_used=now.kv_total + 1),
    "counters at their beginning": lambda now: replace(now, steps=3, requests_total=0),
    "a lease lost at each look": lambda now: replace(now, lease_expiries_total=2**64 - 1),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_nonsense_is_not_built_on_and_ends_what_is_held(held: Scene, garbage: str) -> None:
    model = held.status()["model"]
    held.engine.garbled = GARBAGE[garbage]
    began_ns = held.now_ns
    held.run(1)
    assert held.events(began_ns) == ["stats_nonsense"]
    assert held.detail("stats_nonsense") == held.status()["doubt"]
    assert held.status()["now"]["running"] <= 64
    if garbage == "counters at their beginning":
        # if they stay there, they are believed in the end
        held.engine.garbled = lambda now: replace(now, steps=now.steps - 10**9)
        held.engine.now = replace(held.engine.now, steps=10**9 + 5)
    held.run(GIVE_BACK_S)
    assert only_released(held, began_ns) == "its figures have been in doubt for 10 s"
    thaw(held)
    thawed_ns = held.now_ns
    held.until(lambda: "stats_back" in held.events(thawed_ns), CALM_S + 11)
    held.until(held.held, 5)
    after = held.status()["model"]
    assert after["prefill_ms"] == pytest.approx(model["prefill_ms"], rel=0.05)


def test_counters_that_begin_again_without_a_restart_are_believed_in_the_end(held: Scene) -> None:
    began_ns = held.now_ns
    held.engine.now = replace(held.engine.now, steps=5, requests_total=0, prompt_tokens_total=0)
    held.until(lambda: "stats_back" in held.events(began_ns), 20)
    held.until(held.held, 5)


def test_figures_that_are_good_now_and_then_make_no_noise(held: Scene) -> None:
    began_ns = held.now_ns
    for _ in range(60):
        held.engine.garbled = GARBAGE["all ones"]
        held.run(0.1)
        thaw(held)
        held.run(0.9)
    assert held.events(began_ns) == ["stats_nonsense"]
    assert held.engine.at_start


WORDS: Final[dict[str, dict[str, Any]]] = {
    "a word": {"running": "many"},
    "no number": {"steps": float("nan")},
    "endless": {"waiting": float("inf")},
    "below nothing": {"kv_used": -1},
    "a list": {"running": [1]},
    "half a number": {"running": 1.5},
}


@pytest.mark.parametrize("words", WORDS)
def test_stats_over_the_socket_that_are_none_end_what_is_held(held: Scene, words: str) -> None:
    held.engine.restart(paged=False)
    held.run(2)
    held.control()
    held.engine.stats = WORDS[words]
    began_ns = held.now_ns
    held.run(GIVE_BACK_S + 1)
    assert held.events(began_ns) == ["stats_nonsense"]
    assert held.detail("stats_nonsense").startswith(f"{next(iter(WORDS[words]))} is ")
    assert only_released(held, began_ns) == "its figures have been in doubt for 10 s"
    held.engine.stats = None
    held.until(held.held, CALM_S + 2)


# time


def test_while_the_clock_stands_still_nothing_is_decided(held: Scene) -> None:
    decided = len(held.decisions())
    for _ in range(500):
        held.step(0)
    assert len(held.decisions()) == decided
    held.run(5)
    assert held.held()


@pytest.mark.parametrize("seconds", [3, 40, 3600])
def test_after_a_jump_of_the_clock_leases_are_taken_again_and_windows_begin_anew(
    held: Scene, seconds: int
) -> None:
    values = held.engine.asked("set")[-1]["values"]
    before_ns = held.now_ns
    held.jump(seconds * SECOND)
    told = held.agent.of("event", kind="loop_paused")
    assert told[-1]["detail"] == {"for_ms": seconds * 1000}
    held.run(0.1)
    assert held.events(before_ns + 1) == ["loop_paused", "lease_lost"]
    assert held.engine.asked("set", before_ns + 1)[0]["values"] == values
    # what is decided in the second after is no more than in any other
    held.run(1)
    assert len(held.decisions(before_ns + 1)) <= 1
    assert held.status()["evidence"]["window_ms"] <= 520
    held.run(30)
    assert held.held()
    assert len(held.decisions(before_ns + 1)) <= 4


def test_jumps_again_and_again_end_at_the_start_values(held: Scene) -> None:
    began_ns = held.now_ns
    for _ in range(20):
        held.jump(PAUSED_NS)
        held.run(0.5)
    assert "lease_given_up" in held.events(began_ns)
    held.run(1)
    assert held.engine.at_start
    held.until(held.held, ALONE_S + 5)


def test_a_jump_in_the_middle_of_an_answer_is_not_the_engines_silence(held: Scene) -> None:
    began_ns = held.now_ns
    held.engine.mute = True
    held.until(lambda: held.engine.asked("set", began_ns))
    held.engine.mute = False
    held.jump(60 * SECOND)
    held.run(0.4)
    assert "engine_lost" not in held.events(began_ns)


# the engine


def test_an_engine_that_starts_anew_with_less_gets_nothing_beyond_it(held: Scene) -> None:
    held.engine.restart(SMALLER)
    restarted_ns = held.now_ns
    held.until(lambda: "engine_seen" in held.events(restarted_ns + 1), 5)
    assert held.events(restarted_ns + 1) == ["engine_lost", "engine_restarted", "engine_seen"]
    held.run(20)
    for request in held.engine.asked("set", restarted_ns):
        inside(request["values"], SMALLER)
    assert held.engine.refused == []


def inside(values: dict[str, float], knobs: dict[str, Knob]) -> None:
    for name, value in values.items():
        assert knobs[name].minimum <= value <= knobs[name].maximum


def test_an_engine_that_offers_less_without_a_restart_is_asked_anew(held: Scene) -> None:
    point = dict(held.engine.leases.values)
    assert point["max_batched_tokens"] > SMALLER["max_batched_tokens"].maximum
    began_ns = held.now_ns
    held.engine.offer(SMALLER)
    held.until(lambda: "set_refused" in held.events(began_ns), 2)
    assert "max_batched_tokens must be 16 to 128 tokens" in held.detail("set_refused")
    assert held.engine.refused == ["out_of_range"]
    held.engine.refused.clear()
    held.until(lambda: "engine_changed" in held.events(began_ns), HELD_RETRY_NS / SECOND + 1)
    seen_ns = held.now_ns
    held.run(30)
    for request in held.engine.asked("set", seen_ns):
        inside(request["values"], SMALLER)
    assert held.engine.refused == []


def test_a_set_that_is_never_answered_is_lost_and_the_lease_runs_out(held: Scene) -> None:
    began_ns = held.now_ns
    held.engine.mute = True
    held.until(lambda: "engine_lost" in held.events(began_ns), 2)
    assert held.detail("engine_lost") == "did not answer for 500 ms"
    held.run(LEASE_MS / 1000)
    assert held.engine.at_start
    assert "lost" in held.acks().values() or held.engine.asked("set", began_ns)
    held.engine.mute = False
    held.until(lambda: "engine_seen" in held.events(began_ns), 5)
    held.engine.busy()
    held.until(held.held, 60)


def test_a_decision_that_is_never_answered_ends_as_lost(held: Scene) -> None:
    held.engine.mute = True
    held.engine.busy(running=40)
    began_ns = held.now_ns
    held.until(lambda: held.decisions(began_ns), 2)
    held.until(lambda: "engine_lost" in held.events(began_ns), 2)
    assert {held.acks()[each["tag"]] for each in held.decisions(began_ns)} == {"lost"}


def test_an_engine_that_answers_twice_is_heard_once(held: Scene) -> None:
    held.engine.times = 2
    began_ns = held.now_ns
    held.run(10)
    assert held.events(began_ns) == []
    assert held.held()
    tags = [each["tag"] for each in held.agent.of("ack")]
    assert len(tags) == len(set(tags))


@pytest.mark.parametrize(
    "answer",
    [{"id": 10**6, "ok": True}, {"id": 0, "ok": True}, {"id": -1, "ok": False}, {"id": "x"}],
    ids=json.dumps,
)
def test_an_answer_to_what_was_not_asked_ends_the_connection_and_the_lease(
    held: Scene, answer: dict[str, Any]
) -> None:
    began_ns = held.now_ns
    held.engine.send(answer)
    held.until(lambda: "engine_lost" in held.events(began_ns), 1)
    assert str(held.engine.path) in held.detail("engine_lost")
    held.run(LEASE_MS / 1000)
    assert held.engine.at_start
    held.until(lambda: "engine_seen" in held.events(began_ns), 5)


def test_an_engine_whose_leases_end_early_is_left_alone_in_the_end(held: Scene) -> None:
    began_ns = held.now_ns
    for _ in range(100):
        held.run(0.06)
        held.engine.leases.expire(held.now_ns + 10 * SECOND)
    told = held.events(began_ns)
    assert told.count("lease_lost") == 5
    assert told[-1] == "lease_given_up"
    assert held.engine.at_start
    assert len(held.engine.asked("set", began_ns)) < 40
    held.until(held.held, ALONE_S + 5)


# others


@pytest.mark.parametrize(
    "changed", [{"max_running": 20.0}, {"max_batched_tokens": 999.0}, {"max_queued": 3.0}], ids=str
)
def test_an_operator_who_changes_a_knob_by_his_own_means_is_left_alone(
    held: Scene, changed: dict[str, float]
) -> None:
    held.engine.by_hand |= changed
    began_ns = held.now_ns
    took_s = held.until(lambda: "foreign_write" in held.events(began_ns), 2)
    assert took_s <= 1
    (name, value), *_ = changed.items()
    assert held.detail("foreign_write").startswith(f"{name} is {value:g}, and we set ")
    yielded_ns = held.now_ns
    held.run(0.3)
    assert held.status()["admin"]["state"] == "held"
    held.run(ALONE_S - 2)
    assert held.engine.calls[-1][0] <= yielded_ns
    assert held.decisions(yielded_ns + 1) == []
    # the lease ran out by itself, and with it what was changed under it
    assert held.engine.at_start
    held.until(held.held, 10)


def test_an_operators_change_that_stays_is_left_alone_for_ever(held: Scene) -> None:
    held.engine.by_hand["max_running"] = 20.0
    held.run(2)
    began_ns = held.now_ns
    for _ in range(200):
        held.run(1)
        held.engine.by_hand["max_running"] = 20.0
    assert held.decisions(began_ns) == []
    assert held.engine.asked("set", began_ns) == []
    asked = len(held.engine.asked("get", began_ns))
    assert 0 < asked <= 200 * SECOND // HELD_RETRY_NS
    assert held.status()["admin"]["detail"] == "max_running changed by other means than a lease"


def take(held: Scene, owner: str) -> int:
    """Another agent takes the lease, or renews it; its epoch."""
    leases = held.engine.leases
    epoch = leases.taken_epoch + 1
    leases.set(held.now_ns, owner, epoch, LEASE_MS, {"max_running": 9})
    leases.apply()
    return epoch


def test_the_lease_of_another_agent_is_waited_for_and_taken_when_it_goes(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.engine.busy()
        began_ns = made.now_ns
        for _ in range(600):
            take(made, "another")
            made.run(0.1)
        assert "lease_held" in made.events(began_ns)
        assert "held by 'another'" in made.detail("lease_held")
        assert made.engine.leases.values["max_running"] == 9
        # one attempt to set ends in a look every five seconds
        assert len(made.engine.asked("set")) == 1
        assert len(made.engine.asked("get")) <= 13
        assert made.status()["admin"]["state"] == "held"
        assert [made.acks()[each["tag"]] for each in made.decisions()] == ["refused"]
        made.until(made.held, HELD_RETRY_NS / SECOND + 5)


def test_another_agent_of_the_same_name_is_told_of_and_not_fought(held: Scene) -> None:
    began_ns = held.now_ns
    for _ in range(200):
        take(held, OWNER)
        held.run(0.1)
    assert held.events(began_ns) == ["foreign_write"]
    assert "epoch" in held.detail("foreign_write")
    asked_ns = held.now_ns - 15 * SECOND
    assert held.engine.asked("set", asked_ns) == []
    assert held.engine.asked("release", began_ns) == []
    held.until(held.held, ALONE_S + 5)


# load


def test_an_hour_without_traffic_gives_back_what_is_held_and_decides_nothing(held: Scene) -> None:
    held.engine.idle()
    began_ns = held.now_ns
    held.run(IDLE_NS / SECOND + 1, by_ns=100 * MS)
    (decision,) = [d for d in held.decisions(began_ns) if d["action"][0]["to"] == "start"]
    assert decision["reason"] == "no traffic for 300 s"
    released_ns = held.now_ns
    held.run(3600, by_ns=SECOND)
    assert held.decisions(released_ns) == []
    assert held.engine.at_start
    assert held.engine.asked("set", released_ns) == []
    assert held.events(began_ns) == []
    held.engine.busy()
    held.until(held.held, 5)


def test_one_request_a_minute_makes_no_limit_cycle_and_poisons_no_model(held: Scene) -> None:
    model = held.status()["model"]
    held.engine.idle()
    held.run(30)
    began_ns = held.now_ns
    for _ in range(10):
        held.engine.busy(running=1, waiting=0)
        held.run(0.5)
        held.engine.idle()
        held.run(59.5, by_ns=100 * MS)
    assert len(held.decisions(began_ns)) <= 30
    assert held.events(began_ns) == []
    after = held.status()["model"]
    assert after["trusted"]
    assert after["prefill_ms"] == pytest.approx(model["prefill_ms"], rel=0.1)


def test_from_the_start_one_request_a_minute_ends_in_nothing_held(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        for _ in range(10):
            made.engine.busy(running=1, waiting=0)
            made.run(0.2)
            made.engine.idle()
            made.run(59.8, by_ns=100 * MS)
        # without a model a step that was too long is cut for once, and forgiven with the next ones
        assert len(made.decisions()) <= 30
        made.run(IDLE_NS / SECOND + 1, by_ns=100 * MS)
        assert made.engine.at_start


@pytest.mark.parametrize("ms", [1, 600_000])
def test_an_slo_beyond_reason_comes_to_rest(tmp_path: Path, ms: int) -> None:
    with scene(tmp_path, slo=Slo(ttft_ms=ms, gap_ms=ms)) as made:
        made.engine.busy()
        made.run(45)
        settled_ns = made.now_ns
        made.run(60)
        assert len(made.decisions(settled_ns)) <= 4
        assert made.events(settled_ns) == []
        assert made.engine.refused == []
        if ms > 1:
            assert made.engine.at_start
        else:
            assert made.engine.leases.values["max_batched_tokens"] >= 64
        made.loop.take({"type": "mode", "mode": "observe", "reason": "test"})
        made.run(0.2)
        assert made.engine.at_start


# the machine


def steal(made: Scene) -> None:
    """Others hold the CPU for half the time that the engine wants it."""
    made.kernel.count(1, run_ns=10 * MS, wait_ns=10 * MS, wait_other_ns=10 * MS, waits_over=1)
    for row in (2, 3):
        made.kernel.count(row, run_ns=10 * MS)


def vanish(file: Path) -> None:
    file.unlink()


def turn_read_only(file: Path) -> None:
    file.unlink()
    file.mkdir()


def fill_with_garbage(file: Path) -> None:
    file.write_bytes(b"\xff\xfe nonsense \x00")


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("spoil", [vanish, turn_read_only, fill_with_garbage, empty])
@pytest.mark.parametrize("early", [True, False], ids=["before", "while held"])
def test_cgroup_files_that_break_are_told_of_and_end_nobody(
    tmp_path: Path, spoil: Callable[[Path], None], early: bool
) -> None:
    with scene(tmp_path) as made:
        files = [
            made.cgroups.root / name / file
            for name in ("e", "n1", "n2")
            for file in ("cpu.weight", "cpu.max", "cpu.stat")
        ]

        def run(seconds: float) -> None:
            for _ in range(int(seconds * SECOND / TICK_NS)):
                steal(made)
                made.step()

        run(0.2 if early else 3)
        if not early:
            assert made.cgroups.weight("e") > 100
            assert made.cgroups.quota("n1") is not None
        for file in files:
            spoil(file)
        began_ns = made.now_ns
        run(10)
        told = set(made.events(began_ns))
        assert told & {"limit_refused", "limit_lapsed", "foreign_write", "limits"}
        assert made.status()["group_detail"]
        made.loop.take({"type": "mode", "mode": "observe", "reason": "test"})
        made.step()
        assert made.agent.of("status")[-1]["mode"] == "observe"


# anything

TRUSTED: Final = StepModel(theta=(8.0, 6.0, 0.4, 0.5), steps=1000, prefill_steps=500, error=0.05)
ANY: Final = st.one_of(
    st.integers(0, 2000), st.sampled_from([2**53, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1)
)
POSSIBLE: Final = st.one_of(st.integers(0, 2000), st.integers(0, 2**40))
GAPS_NS: Final = st.one_of(st.just(TICK_NS), st.integers(0, 600 * SECOND))


@st.composite
def pages(draw: st.DrawFn) -> EngineNow:
    """Anything, or what an engine might show; totals are to be added to those before."""
    if draw(st.integers(0, 3)) == 0:
        return EngineNow(*(draw(ANY) for _ in EngineNow.__slots__))
    now = EngineNow(*(draw(POSSIBLE) for _ in EngineNow.__slots__))
    kv_total = draw(st.sampled_from([0, 1, 60_000, 2**40]))
    kv_used = draw(st.integers(0, kv_total)) if kv_total else draw(POSSIBLE)
    return replace(now, running=draw(st.integers(0, 64)), kv_total=kv_total, kv_used=kv_used)


def added(before: Any, more: Any, growing: Iterable[str]) -> Any:
    """`more`, with the fields in `growing` on top of those of `before`; all still 64 bits."""
    sums = {name: getattr(before, name) + getattr(more, name) for name in growing}
    return replace(more, **{name: min(total, 2**64 - 1) for name, total in sums.items()})


TOTALS: Final = [name for name in EngineNow.__slots__ if name.endswith("_total")] + ["steps"]
SEEN: Final = st.lists(
    st.tuples(
        GAPS_NS,
        pages(),
        st.none() | st.builds(Step, *(6 * [ANY])),
        st.builds(Counters, *(len(Counters._fields) * [st.one_of(st.just(0), POSSIBLE, ANY)])),
    ),
    min_size=1,
    max_size=10,
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineWatch, Path]]:
    """A watch that is connected to an engine, and where its page is."""
    kernel = Kernel(2)
    engine = EngineEnd(tmp_path_factory.mktemp("any"), kernel)
    policy = Engine("e", Match("port", 1), admin_socket=engine.path)
    watch = EngineWatch(policy, 1, None, LEASE_MS)
    assert watch.link is not None
    watch.link.tick(SECOND)
    for _ in ("hello", "get"):
        engine.serve(SECOND)
        watch.link.on_readable(SECOND)
    assert watch.link.can_set
    yield watch, engine.page.path
    watch.close()
    engine.close()
    kernel.close()


@settings(max_examples=60)
@given(SEEN, st.sampled_from([1, 40, 2000, 600_000]), st.booleans())
def test_whatever_pages_and_counters_say_what_is_sent_is_in_range_and_comes_to_rest(
    watched: tuple[EngineWatch, Path],
    seen: list[tuple[int, EngineNow, Step | None, Counters]],
    gap_ms: int,
    trusted: bool,
) -> None:
    watch, page = watched[0], PageWriter(watched[1])
    watch.policy = replace(watch.policy, slo=Slo(ttft_ms=50 * gap_ms, gap_ms=gap_ms))
    watch.forget()
    watch.figures = Figures()
    watch.resume(1000 * SECOND)
    assert watch.link is not None
    watch.link.look_anew()
    if trusted:
        watch.core = replace(watch.core, model=TRUSTED)
    now_ns = 1000 * SECOND
    now, counters = EngineNow(), Counters()
    for gap_ns, more, step, counted in seen:
        now_ns += gap_ns
        now = added(now if max(now.steps, more.steps) < 2**53 else EngineNow(), more, TOTALS)
        counters = Counters._make(
            min(sum(both), 2**64 - 1) for both in zip(counters, counted, strict=True)
        )
        page.write(now, step)
        decide_on(watch, now_ns, counters)
    # the last of them for two minutes more, while steps go by
    changes = []
    for _ in range(600):
        now_ns += 200 * MS
        now = replace(now, steps=min(now.steps + 4, 2**64 - 1), updated_ns=now_ns)
        page.write(now)
        changes.append(decide_on(watch, now_ns, counters))
    assert sum(changes[:300]) <= 30
    # what is remembered of a load fades over minutes, and the queue's cap rises with it
    assert sum(changes[300:]) <= 6


def decide_on(watch: EngineWatch, now_ns: int, counters: Counters) -> bool:
    """Decide as the loop does; whether a knob was changed. What would be sent must be sendable."""
    signals = watch.take(now_ns, counters, 0, 0.0, 0.1)
    inputs = watch.inputs("control", signals, 0.1, CpuView(None, 0, 2))
    watch.core, proposal = decide_batch_of(inputs)
    json.dumps(status_of(watch))
    if proposal is None:
        return False
    (action,) = proposal.actions
    if isinstance(action, SetKnobs):
        assert watch.link is not None
        assert watch.link.hello is not None
        for name, value in action.values.items():
            assert watch.link.hello.knobs[name].check(value) == value
    watch.restart_window()
    return True
