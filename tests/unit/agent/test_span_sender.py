"""Spans on their way to a collector that is there, away, slow or picky."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from agent import span_sender
from agent.request_head import SpanRef
from agent.span_sender import BATCH, TRIES, SpanSender
from agent.spans import Span


def span(number: int = 1) -> Span:
    return Span("s", SpanRef(1, number), None, True, 0, 1, {})


class Collector:
    """Keeps what it takes; `answer` says whether it does."""

    def __init__(self, answer: Callable[[], str] = lambda: "") -> None:
        self.answer = answer
        self.taken: list[Span] = []
        self.sizes: list[int] = []
        self.attempts = 0
        self.closed = threading.Event()

    def export(self, spans: Sequence[Span]) -> str:
        self.attempts += 1
        why = self.answer()
        if not why:
            self.taken += spans
            self.sizes.append(len(spans))
        return why

    def close(self) -> None:
        self.closed.set()


@contextmanager
def sender_to(collector: Collector, max_queue: int = 10_000) -> Iterator[SpanSender]:
    sender = SpanSender(collector, max_queue)
    try:
        yield sender
    finally:
        sender.close()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits a hundredth of the usual between attempts."""
    monkeypatch.setattr(span_sender, "FIRST_BACKOFF_S", span_sender.FIRST_BACKOFF_S / 100)
    monkeypatch.setattr(span_sender, "LAST_BACKOFF_S", span_sender.LAST_BACKOFF_S / 100)
    monkeypatch.setattr(span_sender, "COLLECT_S", span_sender.COLLECT_S / 100)


def test_every_span_arrives_once_in_order_in_batches() -> None:
    collector = Collector()
    with sender_to(collector) as sender:
        for number in range(1, 2 * BATCH + 11):
            sender.put(span(number))
    assert [each.ref.span_id for each in collector.taken] == list(range(1, 2 * BATCH + 11))
    assert max(collector.sizes) <= BATCH
    assert sender.exported == 2 * BATCH + 10
    assert sum(sender.dropped.values()) == 0
    assert collector.closed.is_set()


def test_a_lone_span_need_not_wait_for_the_end() -> None:
    collector = Collector()
    with sender_to(collector) as sender:
        sender.put(span())
        eventually(lambda: collector.taken)


def test_a_full_queue_drops_and_counts_and_never_blocks() -> None:
    gate = threading.Event()

    def answer() -> str:
        gate.wait()
        return ""

    collector = Collector(answer)
    with sender_to(collector, max_queue=20) as sender:
        for _ in range(20):
            sender.put(span())
        eventually(lambda: collector.attempts)
        for _ in range(5):
            sender.put(span())
        assert sender.dropped["queue_full"] == 5
        gate.set()
    assert sender.exported == 20


@pytest.mark.usefixtures("hasty")
def test_a_batch_that_is_not_taken_is_tried_again_and_then_arrives() -> None:
    answers = iter(["away"] * (TRIES - 1))
    collector = Collector(lambda: next(answers, ""))
    with sender_to(collector) as sender:
        sender.put(span())
        eventually(lambda: sender.exported)
    assert collector.attempts == TRIES
    assert sender.problem == ""
    assert sum(sender.dropped.values()) == 0


@pytest.mark.usefixtures("hasty")
def test_a_batch_that_is_never_taken_is_dropped_counted_and_makes_way_for_the_next() -> None:
    answers = iter(["refused"] * TRIES)
    collector = Collector(lambda: next(answers, ""))
    with sender_to(collector) as sender:
        sender.put(span(1))
        eventually(lambda: sender.dropped["not_taken"])
        assert sender.problem == "refused"
        sender.put(span(2))
        eventually(lambda: sender.exported)
    assert [each.ref.span_id for each in collector.taken] == [2]
    assert sender.dropped == {"queue_full": 0, "not_taken": 1, "stopped": 0}
    assert sender.problem == ""


def test_many_spans_make_no_more_attempts_than_few() -> None:
    collector = Collector(lambda: "away")
    with sender_to(collector, max_queue=100) as sender:
        for _ in range(10_000):
            sender.put(span())
        eventually(lambda: collector.attempts)
        began_s = time.monotonic()
        while time.monotonic() < began_s + 0.5:
            sender.put(span())
            time.sleep(0.001)
        attempts = collector.attempts
    # the first wait is 0.8 s at least; the end makes one attempt more
    assert attempts <= 2
    assert sender.exported + sum(sender.dropped.values()) >= 10_000


def test_the_end_gives_up_on_a_collector_that_is_away_and_counts_what_is_left() -> None:
    collector = Collector(lambda: "away")
    with sender_to(collector) as sender:
        for _ in range(BATCH + 1):
            sender.put(span())
        eventually(lambda: collector.attempts)
    assert sender.dropped == {"queue_full": 0, "not_taken": 0, "stopped": BATCH + 1}
    sender.put(span())
    assert sender.dropped["stopped"] == BATCH + 2


def test_the_end_does_not_wait_for_a_collector_that_hangs() -> None:
    gate = threading.Event()

    def answer() -> str:
        gate.wait()
        return ""

    collector = Collector(answer)
    sender = SpanSender(collector, 100)
    sender.put(span())
    eventually(lambda: collector.attempts)
    sender.put(span())
    sender.close()
    assert sender.dropped["stopped"] == 2
    gate.set()


def test_an_empty_sender_ends_at_once_without_an_attempt() -> None:
    collector = Collector()
    with sender_to(collector):
        pass
    assert collector.attempts == 0
