"""The plug-in in a vLLM that serves over HTTP: what the contract promises, by its effects."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from controller.engines.client import EngineError
from controller.engines.contract import parse_hello
from controller.engines.page import Step
from demo.stage import Stage
from tests.engines.vllm.held import Watch, ask, holding, take, until
from tests.engines.vllm.requests import Answer, Crowd, metrics, prompt

pytestmark = pytest.mark.engines

KNOBS = {
    "max_running": 3,
    "max_batched_tokens": 128,
    "long_prefill_tokens": 64,
    "ttft_deadline_ms": 700,
    "prefill_tokens_per_s": 5000,
    "max_deferral_ms": 9000,
}
OWNER = """
import sys
from pathlib import Path
from tests.engines.vllm.held import take
take(Path(sys.argv[1]), {values}, "killed", 1500)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def crowd(stage: Stage) -> Iterator[Crowd]:
    with Crowd(stage.port) as made:
        yield made


@pytest.fixture
def watch(stage: Stage) -> Watch:
    return Watch(stage.page)


def whole(futures: list[Future[Answer]], tokens: int) -> list[Answer]:
    """Their answers, none of which failed or was cut short."""
    answers = [future.result() for future in futures]
    assert {answer.status for answer in answers} == {200}
    assert {len(answer.tokens) for answer in answers} == {tokens}
    assert {answer.finish for answer in answers} == {"length"}
    return answers


def test_it_says_who_it_is_and_what_it_was_started_with(stage: Stage) -> None:
    hello = parse_hello(ask(stage.admin_socket, "hello"))
    assert (hello.engine, hello.version) == ("vllm", "0.32.0")
    assert Path(str(hello.page)) == stage.page
    assert "EngineCore" in Path(f"/proc/{hello.pid}/comm").read_text() + Path(
        f"/proc/{hello.pid}/cmdline"
    ).read_text().replace("\0", " ")
    knobs = {name: (knob.minimum, knob.maximum, knob.start) for name, knob in hello.knobs.items()}
    assert knobs == {
        "max_running": (1, 32, 32),
        "max_batched_tokens": (1, 1024, 1024),
        "long_prefill_tokens": (1, 1024, 1024),
        "ttft_deadline_ms": (0, 3_600_000, 0),
        "prefill_tokens_per_s": (0, 100_000_000, 0),
        "max_deferral_ms": (0, 3_600_000, 60_000),
    }


@pytest.mark.parametrize("load", [0, 8], ids=["idle", "under load"])
def test_every_knob_goes_back_when_its_owner_is_killed(
    stage: Stage, crowd: Crowd, load: int
) -> None:
    start = ask(stage.admin_socket, "get")["start"]
    futures = crowd.send_many(load, 40, 300)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("{values}", repr(KNOBS)), str(stage.admin_socket)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        until(lambda: ask(stage.admin_socket, "get")["values"] == KNOBS, "every knob in force")
        owner.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    until(lambda: ask(stage.admin_socket, "get")["values"] == start, "the start values")
    assert time.monotonic() - killed_s < 1.5 + 5
    state = ask(stage.admin_socket, "get")
    assert (state["owner"], state["pending"], state["applied_epoch"]) == (None, {}, 0)
    whole(futures, 300) if load else None


def test_no_more_run_than_the_cap_and_all_are_served(
    stage: Stage, crowd: Crowd, watch: Watch
) -> None:
    with holding(stage.admin_socket, max_running=3):
        futures = crowd.send_many(12, 20, 40)
        until(lambda: watch.now().waiting > 0, "a queue")
        seen = set()
        while not all(future.done() for future in futures):
            seen.add(watch.now().running)
        assert max(seen) == 3
        whole(futures, 40)


def test_no_step_is_larger_than_the_budget(stage: Stage, crowd: Crowd, watch: Watch) -> None:
    with holding(stage.admin_socket, max_batched_tokens=48):
        whole(crowd.send_many(6, 200, 8, seed=100), 8)
        steps = watch.steps()
        sizes = [step.prefill_tokens + step.decode_seqs for step in steps]
        assert max(sizes) <= 48
        assert max(step.prefill_tokens for step in steps) > 40


def test_a_long_prompt_is_cut_where_others_run(stage: Stage, crowd: Crowd, watch: Watch) -> None:
    with holding(stage.admin_socket, long_prefill_tokens=32):
        other = crowd.send(prompt(20, 200), 100)
        until(lambda: watch.now().running == 1, "another to run")
        watch.steps()
        whole([crowd.send(prompt(300, 201), 4)], 4)
        assert max(step.prefill_tokens for step in watch.steps()) == 32
        whole([other], 100)


def test_decodes_get_their_tokens_whatever_the_budget(
    stage: Stage, crowd: Crowd, watch: Watch
) -> None:
    futures = crowd.send_many(16, 20, 200, seed=300)
    until(lambda: watch.now().running == 16 and not watch.now().waiting_tokens, "sixteen decodes")
    with holding(stage.admin_socket, max_batched_tokens=4):
        watch.steps()
        steps: list[Step] = []
        while len(steps) < 8:
            steps += watch.steps()
        assert {step.decode_seqs for step in steps[:-1]} == {16}
        whole(futures, 200)


def test_a_lower_cap_drains_and_stops_nobody(stage: Stage, crowd: Crowd, watch: Watch) -> None:
    before = watch.now()
    futures = crowd.send_many(10, 20, 100, seed=400)
    longer = crowd.send_many(2, 20, 600, seed=450)
    until(lambda: watch.now().running == 12, "twelve at once")
    with holding(stage.admin_socket, max_running=2):
        assert watch.now().running > 2
        more = crowd.send_many(2, 20, 10, seed=500)
        until(lambda: watch.now().waiting == 2, "two that wait")
        drained_ns = max(answer.ended_ns for answer in whole(futures, 100))
        late = whole(more, 10)
        freed_ns = min(answer.ended_ns for answer in whole(longer, 600))
        # with ten gone there are still as many as may be: the others wait for one of the two
        halfway_ns = (drained_ns + freed_ns) // 2
        assert all(each.first_ns > halfway_ns for each in late)
    assert watch.now().preemptions_total == before.preemptions_total


def test_who_cannot_be_on_time_waits_for_those_who_can(
    stage: Stage, crowd: Crowd, watch: Watch
) -> None:
    rules = {"ttft_deadline_ms": 2000, "prefill_tokens_per_s": 500, "max_running": 1}
    for relegated in (True, False):
        with holding(stage.admin_socket, **(rules if relegated else {"max_running": 1})):
            first = crowd.send(prompt(20, 600), 120)
            until(lambda: watch.now().running == 1, "the first to run")
            long = crowd.send(prompt(1500, 601), 4)
            until(lambda: watch.now().waiting == 1, "the long one to wait")
            short = crowd.send_many(4, 20, 4, seed=602)
            until(lambda: watch.now().waiting == 5, "the short ones to wait")
            assert watch.now().deferred == int(relegated)
            others = whole(short, 4)
            late = whole([long], 4)[0]
            whole([first], 120)
            assert all(each.first_ns < late.first_ns for each in others) is relegated


def test_one_deferred_for_as_long_as_the_bound_is_served_among_the_others(
    stage: Stage, crowd: Crowd, watch: Watch
) -> None:
    rules = {"ttft_deadline_ms": 1000, "prefill_tokens_per_s": 1000, "max_deferral_ms": 1000}
    with holding(stage.admin_socket, **rules, max_running=1):
        long = crowd.send(prompt(1500, 700), 2)
        blocked = crowd.send(prompt(20, 701), 200)
        number = 702
        served: list[Future[Answer]] = []
        while not long.done() and len(served) < 400:
            take(stage.admin_socket, {})
            served += crowd.send_many(2, 20, 2, seed=number)
            number += 2
            time.sleep(0.02)
        assert long.done(), "it was never its turn"
        whole([long], 2)
        whole([blocked], 200)
        whole(served, 2)


def test_two_clients_share_it_by_its_leases(stage: Stage) -> None:
    with holding(stage.admin_socket, max_running=7):
        with pytest.raises(EngineError) as refused:
            take(stage.admin_socket, {"max_running": 5}, "another")
        assert refused.value.code == "held"
        assert ask(stage.admin_socket, "get")["values"]["max_running"] == 7
    take(stage.admin_socket, {"max_running": 5}, "another")
    assert ask(stage.admin_socket, "get")["owner"] == "another"
    ask(stage.admin_socket, "release", owner="another")


def test_answers_are_the_same_whatever_is_done_to_the_knobs(stage: Stage, crowd: Crowd) -> None:
    alone = [answer.tokens for answer in whole(crowd.send_many(12, 60, 120, seed=900), 120)]
    futures = crowd.send_many(12, 60, 120, seed=900)
    settings = (
        {"max_running": 2, "max_batched_tokens": 32, "long_prefill_tokens": 8},
        {"max_running": 32, "max_batched_tokens": 1024, "ttft_deadline_ms": 50},
        {"max_running": 5, "max_batched_tokens": 1, "long_prefill_tokens": 1024},
    )
    turn = 0
    while not all(future.done() for future in futures):
        take(stage.admin_socket, settings[turn % len(settings)])
        turn += 1
        time.sleep(0.05)
    ask(stage.admin_socket, "release", owner="test")
    assert turn > len(settings)
    assert [answer.tokens for answer in whole(futures, 120)] == alone


def test_the_page_shows_what_vllm_says_of_itself(stage: Stage, crowd: Crowd, watch: Watch) -> None:
    until(lambda: watch.now().running == 0, "an idle engine")
    page, said = watch.now(), metrics(stage.port)
    whole(crowd.send_many(10, 64, 30, seed=1000), 30)
    until(
        lambda: (
            metrics(stage.port)["vllm:request_success_total"]
            == said["vllm:request_success_total"] + 10
        ),
        "vLLM's own count",
    )
    page_after, said_after = watch.now(), metrics(stage.port)
    for ours, theirs in (
        ("prompt_tokens_total", "vllm:prompt_tokens_total"),
        ("generated_tokens_total", "vllm:generation_tokens_total"),
        ("finished_total", "vllm:request_success_total"),
        ("preemptions_total", "vllm:num_preemptions_total"),
    ):
        assert getattr(page_after, ours) - getattr(page, ours) == said_after[theirs] - said[theirs]
    with holding(stage.admin_socket, max_running=4):
        futures = crowd.send_many(9, 200, 400, seed=1100)
        until(lambda: (watch.now().running, watch.now().waiting) == (4, 5), "four of nine")
        until(
            lambda: (
                metrics(stage.port)["vllm:num_requests_running"] == 4
                and metrics(stage.port)["vllm:num_requests_waiting"] == 5
            ),
            "the same by vLLM",
        )
        now, usage = watch.now(), metrics(stage.port)["vllm:kv_cache_usage_perc"]
        assert now.kv_used / now.kv_total == pytest.approx(usage, rel=0.5)
        assert now.kv_used > 0
    whole(futures, 400)


def test_steps_say_what_was_computed(stage: Stage, crowd: Crowd, watch: Watch) -> None:
    until(lambda: watch.now().running == 0, "an idle engine")
    watch.steps()
    whole([crowd.send(prompt(100, 1200), 20)], 20)
    first, *rest = watch.steps()
    assert (first.prefill_tokens, first.decode_seqs, first.kv_tokens) == (100, 0, 100)
    assert [step.decode_seqs for step in rest] == [1] * 19
    assert [step.kv_tokens for step in rest] == list(range(101, 120))
    assert all(0 < step.step_ns < 10_000_000_000 for step in (first, *rest))


def test_a_client_that_goes_away_leaves_no_figures_behind(
    stage: Stage, crowd: Crowd, watch: Watch
) -> None:
    until(lambda: watch.now().running == 0, "an idle engine")
    with holding(stage.admin_socket, max_running=1):
        gone = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from tests.engines.vllm.requests import ask, prompt;"
                "from concurrent.futures import ThreadPoolExecutor as T;"
                "[T(2).submit(ask, int(sys.argv[1]), prompt(300, s), 1500) for s in (1, 2)]",
                str(stage.port),
            ]
        )
        with gone:
            until(lambda: (watch.now().running, watch.now().waiting) == (1, 1), "both")
            gone.send_signal(signal.SIGKILL)
        until(lambda: (watch.now().running, watch.now().waiting) == (0, 0), "neither")
    now = watch.now()
    assert (now.waiting_tokens, now.on_time_tokens, now.kv_used, now.oldest_arrival_ns) == (0,) * 4


def test_without_its_socket_it_serves_and_the_lease_ends(
    stage: Stage, crowd: Crowd, watch: Watch
) -> None:
    take(stage.admin_socket, {"max_running": 2}, lease_ms=800)
    stage.admin_socket.unlink()
    whole(crowd.send_many(4, 20, 20, seed=1300), 20)
    until(lambda: watch.now().max_running == 32, "the start value")
    with pytest.raises(EngineError):
        ask(stage.admin_socket, "get")


def test_the_next_one_takes_over_after_a_kill(stage: Stage) -> None:
    """The last of these tests: what it leaves is another server."""
    stale = stage.page.stat().st_ino
    stage.stop_engine(by=signal.SIGKILL)
    assert stage.page.exists()
    stage.start_engine()
    assert stage.page.stat().st_ino != stale
    with Crowd(stage.port) as crowd:
        hello = parse_hello(ask(stage.admin_socket, "hello"))
        whole(crowd.send_many(4, 20, 20, seed=1400), 20)
        now = Watch(stage.page).now()
        assert (now.requests_total, now.finished_total) == (4, 4)
    stage.stop_engine()
    assert not Path(f"/proc/{hello.pid}").exists()
    stage.start_engine()
    assert parse_hello(ask(stage.admin_socket, "hello")).instance != hello.instance
