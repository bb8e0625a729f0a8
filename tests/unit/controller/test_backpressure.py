import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.backpressure import (
    KV_GRACE_RATIO,
    Backpressure,
    Queues,
    backpressure,
    send_pressure,
)
from controller.engines.page import EngineNow

from .situations import MS, SECOND, window

TTFT_MS = 1000.0
counts = st.integers(0, 2**40)


def test_an_idle_engine_is_under_none() -> None:
    assert backpressure(window(engine=EngineNow()), TTFT_MS) == Backpressure()
    assert backpressure(window(), TTFT_MS).value == 0


def test_a_queue_presses_by_its_share_and_its_age() -> None:
    now = 10 * SECOND
    engine = EngineNow(waiting=3, running=1, oldest_arrival_ns=now - 500 * MS)
    assert backpressure(window(now, engine), TTFT_MS).queue == pytest.approx(0.75 * 0.5)


def test_a_queue_older_than_the_ttft_target_presses_by_its_whole_share() -> None:
    now = 10 * SECOND
    engine = EngineNow(waiting=3, running=1, oldest_arrival_ns=now - 5 * SECOND)
    assert backpressure(window(now, engine), TTFT_MS).queue == 0.75


def test_a_queue_that_moves_is_no_pressure() -> None:
    now = 10 * SECOND
    engine = EngineNow(waiting=50, running=1, oldest_arrival_ns=now)
    assert backpressure(window(now, engine), TTFT_MS).queue == 0


@pytest.mark.parametrize(
    ("use", "pressure"),
    [(0.0, 0.0), (1 - KV_GRACE_RATIO, 0.0), (1 - KV_GRACE_RATIO / 2, 0.5), (1.0, 1.0)],
)
def test_the_kv_cache_presses_over_its_last_share(use: float, pressure: float) -> None:
    engine = EngineNow(kv_used=round(use * 10_000), kv_total=10_000)
    assert backpressure(window(engine=engine), TTFT_MS).kv == pytest.approx(pressure)


def test_waiting_for_the_cpu_presses_by_its_share_own_tasks_included() -> None:
    found = backpressure(window(run_ns=30, wait_ns=70, wait_self_ns=50, wait_other_ns=20), TTFT_MS)
    assert found.cpu == 0.7


def test_streams_with_unsent_bytes_press_by_their_share_of_those_under_way() -> None:
    counters = Counters(
        requests=20, ends_complete=8, ends_early=2, blocked_begun=7, blocked_ended=3
    )
    assert send_pressure(counters, Queues()) == 0.4


def test_streams_older_than_the_programs_are_pressed_by_what_the_agent_saw() -> None:
    assert send_pressure(Counters(), Queues(unsent=3)) == 1


def test_what_was_counted_since_the_agents_look_is_added_to_it() -> None:
    counters = Counters(requests=8, blocked_begun=9, blocked_ended=4)
    assert send_pressure(counters, Queues(unsent=1, blocked=4)) == 2 / 8
    assert send_pressure(counters, Queues(unsent=1, blocked=6)) == 0


def test_a_stream_whose_end_was_never_counted_presses_no_longer_than_the_next_look() -> None:
    counters = Counters(requests=8, blocked_begun=5, blocked_ended=4)
    assert send_pressure(counters, Queues(unsent=0, blocked=1)) == 0


def test_the_accept_queue_and_blocked_streams_are_stages_of_their_own() -> None:
    found = backpressure(window(), TTFT_MS, accept=0.25, send=0.5)
    assert found == Backpressure(accept=0.25, send=0.5)
    assert found.value == 0.5


def test_the_value_is_the_worst_stage() -> None:
    assert Backpressure(queue=0.1, kv=0.4, cpu=0.2, injected=0.3).value == 0.4
    assert backpressure(window(injected=0.9), TTFT_MS).value == 0.9


@given(counts, counts, counts, counts, counts, counts, counts, st.floats(1, 600_000))
def test_each_stage_is_between_0_and_1_whatever_the_engine_shows(
    run_ns: int,
    wait_ns: int,
    waiting: int,
    running: int,
    used: int,
    total: int,
    arrival_ns: int,
    ttft_ms: float,
) -> None:
    engine = EngineNow(
        waiting=waiting,
        running=running,
        kv_used=used,
        kv_total=total,
        oldest_arrival_ns=arrival_ns,
    )
    found = backpressure(window(engine=engine, run_ns=run_ns, wait_ns=wait_ns), ttft_ms)
    for stage in (found.queue, found.kv, found.cpu, found.injected):
        assert 0 <= stage <= 1
