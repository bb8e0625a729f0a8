from typing import Any

import pytest

from agent.advisor import HORIZON_S, WINDOW_S, Advisor
from agent.history import History, Moment
from bpf.histogram import EMPTY
from bpf.layout import Counters
from controller.advice import UTILISATION, Advice
from controller.policy_model import Engine, Match, Slo
from controller.watch import EngineWatch
from controller.watch_status import status_of

from .made import MS, histogram

SECOND = 1_000_000_000
SLO = Slo(ttft_ms=500, gap_ms=100)

# 10 ms a step, 0.05 ms a prompt token, 0.5 ms a sequence; prompts of 400, answers of 50
MODEL = {"trusted": True, "base_ms": 10.0, "prefill_ms": 0.05, "decode_ms": 0.5, "kv_ms": 0.0}
PER_SEQ_MS = 0.5 + 0.05 * 400 / 50
RUNNING = (0.85 * 100 - 10) / PER_SEQ_MS
CAPACITY = 1e3 * RUNNING / (50 * 0.85 * 100)


class Lab:
    """An engine that gets `rps` requests a second, seen once a second."""

    def __init__(self) -> None:
        self.advisor = Advisor()
        self.history = History()
        self.at_s = 100
        self.requests = 0
        self.model: dict[str, Any] = dict(MODEL)
        self.knobs: dict[str, Any] = {}
        self.waiting, self.running, self.kv_total = 0, 10, 0
        self.ttft_ms: list[int] = [80]

    def run(self, seconds: int, rps: int, with_status: bool = True) -> Advice:
        for _ in range(seconds):
            self.at_s += 1
            self.requests += rps
            ttft = histogram(*[ms * MS for ms in self.ttft_ms for _ in range(self.requests)])
            moment = Moment(self.at_s * SECOND, Counters(requests=self.requests), ttft=ttft)
            if not self.requests:
                moment = Moment(moment.at_ns, moment.counters, ttft=EMPTY)
            self.history.add(moment)
            window = self.history.window(WINDOW_S)
            status = self.status() if with_status else None
            self.advisor.take("chat", SLO, moment, window, status)
        return self.advisor.advice("chat")

    def status(self) -> dict[str, Any]:
        now = {
            "waiting": self.waiting,
            "running": self.running,
            "kv_total": self.kv_total,
            "requests_total": self.requests,
            "finished_total": self.requests,
            "prompt_tokens_total": 400 * self.requests,
            "generated_tokens_total": 50 * self.requests,
        }
        said = status_of(EngineWatch(Engine("chat", Match("port", 1)), 1, None, 500))
        assert self.model.keys() <= said["model"].keys()
        return said | {"now": now, "model": self.model, "knobs": self.knobs}


def test_an_engine_never_heard_of_has_no_advice() -> None:
    assert Advisor().advice("chat") == Advice()


def test_a_steady_load_is_held_against_the_capacity() -> None:
    advice = Lab().run(90, rps=30)
    assert advice.load_ratio == pytest.approx(30 / (UTILISATION * CAPACITY), rel=0.05)
    assert advice.instances["capacity"] == 2
    # TTFT meets its SLO: the text's formula only divides
    assert advice.instances["text"] == round(30 / CAPACITY)


def test_late_first_tokens_multiply_in_the_texts_formula() -> None:
    lab = Lab()
    lab.ttft_ms = [2000]
    advice = lab.run(90, rps=30)
    assert advice.instances["text"] == pytest.approx(30 * 4**1.5 / CAPACITY, rel=0.15)
    assert advice.instances["capacity"] == 2


def test_a_burst_is_planned_for() -> None:
    lab = Lab()
    calm = lab.run(60, rps=10).load_ratio
    assert calm is not None
    burst = lab.run(HORIZON_S, rps=60).load_ratio
    assert burst is not None
    assert burst > 3 * calm


@pytest.mark.parametrize(
    ("knobs", "kv_total"),
    [({"max_running": {"value": 4, "start": 8}}, 0), ({}, round(450 * 8 / 0.95))],
    ids=["running cap", "KV cache"],
)
def test_what_the_engine_holds_at_once_bounds_its_capacity(
    knobs: dict[str, Any], kv_total: int
) -> None:
    lab = Lab()
    lab.knobs, lab.kv_total = knobs, kv_total
    ratio = lab.run(90, rps=30).load_ratio
    at_once_rps = 1e3 * 8 / (50 * (10 + 8 * PER_SEQ_MS))
    assert ratio == pytest.approx(30 / (UTILISATION * at_once_rps), rel=0.05)


def test_a_model_that_is_not_trusted_gives_no_number() -> None:
    lab = Lab()
    lab.model["trusted"] = False
    advice = lab.run(90, rps=30)
    assert advice.instances == {}
    assert advice.load_ratio is None
    assert advice.warm_replicas == 0


def test_without_a_controller_nothing_is_advised() -> None:
    lab = Lab()
    lab.run(90, rps=30)
    advice = lab.run(1, rps=30, with_status=False)
    assert advice.instances == {}
    assert advice.load_ratio is None


def test_a_load_of_a_moment_gives_no_number_yet() -> None:
    assert Lab().run(10, rps=30).instances == {}


def test_a_deep_queue_and_late_first_tokens_ask_for_a_warm_replica() -> None:
    lab = Lab()
    assert lab.run(30, rps=30).warm_replicas == 0
    lab.waiting, lab.ttft_ms = 40, [2000]
    advice = lab.run(30, rps=30)
    assert advice.triggers == {"queue": True, "p95": True}
    assert advice.warm_replicas == 1


def test_without_traffic_one_engine_is_enough() -> None:
    lab = Lab()
    lab.run(60, rps=30)
    advice = lab.run(400, rps=0)
    assert advice.instances == {"text": 1, "capacity": 1}


def test_an_engine_that_left_the_policy_is_forgotten() -> None:
    lab = Lab()
    lab.run(40, rps=30)
    lab.advisor.keep({"other"})
    assert lab.advisor.advice("chat") == Advice()
