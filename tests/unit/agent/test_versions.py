"""Streams told apart by a header that anybody may send."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.streams import StreamLog
from agent.versions import ABSENT, IDLE_S, MOST, OTHER, UNSEEN, Versions
from bpf.layout import EndReason
from controller.policy_model import Slo

from .made import MS, end, histogram, start

HEADER = "x-canary-version"
SLO = Slo(ttft_ms=50, gap_ms=20)


def head(*values: bytes, name: bytes = b"X-Canary-Version", whole: bool = True) -> bytes:
    lines = [b"POST /v1/completions HTTP/1.1", b"host: a", *(name + b": " + v for v in values)]
    return b"\r\n".join(lines) + (b"\r\n\r\n{" if whole else b"\r\nx-mo")


class Told:
    """Versions of the engine `chat`, with the clock in the test's hands."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.versions = Versions(lambda: self.now_s)
        self.versions.ask({"chat": HEADER, "code": None})
        self.log = StreamLog()

    def of(self, *values: bytes, **how: Any) -> str | None:
        return self.versions.of("chat", head(*values, **how))

    def stream(self, value: bytes, reason: EndReason = EndReason.COMPLETE, **fields: Any) -> None:
        self.log.started("chat", start(), self.of(value))
        self.versions.count(self.log.ended("chat", end(reason, **fields), SLO, "batch"))


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_value_of_the_header_is_the_version_whatever_the_case_of_its_name(told: Told) -> None:
    assert told.of(b"v2") == "v2"
    assert told.of(b" \tv1.0+b-3_x ") == "v1.0+b-3_x"
    assert told.of(b"V2", name=b"x-CANARY-version") == "V2"


def test_an_engine_without_a_header_has_no_versions(told: Told) -> None:
    assert told.versions.of("code", head(b"v2")) is None
    assert told.versions.of("gone", head(b"v2")) is None


@pytest.mark.parametrize(
    ("values", "how", "expected"),
    [
        ((), {}, ABSENT),
        ((b"v2",), {"name": b"x-other"}, ABSENT),
        ((), {"whole": False}, UNSEEN),
        ((b"v2",), {"whole": False}, "v2"),
        ((b"v1", b"v2"), {}, OTHER),
        ((b"v1", b"v1"), {}, OTHER),
        ((b"",), {}, OTHER),
        ((b"(none)",), {}, OTHER),
        ((b"a b",), {}, OTHER),
        ((b'a"b',), {}, OTHER),
        ((b"-a",), {}, OTHER),
        ((b"a" * 40,), {}, "a" * 40),
        ((b"a" * 41,), {}, OTHER),
        ((b"\x1b[31m",), {}, OTHER),
        ((b"a\nb",), {}, OTHER),
        (("ä".encode(),), {}, OTHER),
    ],
)
def test_what_is_no_plain_value_is_none(
    told: Told, values: tuple[bytes, ...], how: dict[str, Any], expected: str
) -> None:
    assert told.of(*values, **how) == expected


def test_what_is_hidden_by_tls_is_not_seen(told: Told) -> None:
    assert told.versions.of("chat", b"\x16\x03\x01\x02\x00\x01") == UNSEEN
    assert told.versions.of("chat", b"") == UNSEEN


def test_more_values_than_can_be_told_apart_are_one(told: Told) -> None:
    names = [f"v{n}".encode() for n in range(MOST + 3)]
    assert [told.of(name) for name in names] == [
        *(name.decode() for name in names[:MOST]),
        OTHER, OTHER, OTHER,
    ]  # fmt: skip
    assert told.of(b"v0") == "v0"


def test_a_value_nobody_has_sent_for_an_hour_makes_room(told: Told) -> None:
    for n in range(MOST):
        told.of(f"v{n}".encode())
    told.stream(b"v0")
    told.now_s = IDLE_S - 1
    assert told.of(b"new") == OTHER
    for n in range(1, MOST):
        told.of(f"v{n}".encode())
    told.now_s = IDLE_S
    assert told.of(b"new") == "new"
    assert "v0" not in told.versions.figures("chat")
    assert told.of(b"v0") == OTHER


def test_streams_are_counted_by_version(told: Told) -> None:
    told.stream(b"v1")
    told.stream(b"v1", gap_max_ns=90 * MS, gap_sum_ns=95 * MS, gaps_over=1)
    told.stream(b"v2", status=500, first_ns=0, chunks=0)
    told.stream(b"v2", EndReason.SERVER_CLOSED)
    told.stream(b"v2", EndReason.CLIENT_RESET)
    figures = told.versions.figures("chat")
    assert set(figures) == {"v1", "v2"}
    one, two = figures["v1"], figures["v2"]
    assert (one.streams, one.good, one.errors, one.gaps, one.gaps_over) == (2, 1, 0, 4, 1)
    assert one.gap_sum_ns == 105 * MS
    assert one.ttft == histogram(10 * MS, 10 * MS)
    assert one.longest_gap == histogram(5 * MS, 90 * MS)
    assert (two.streams, two.good, two.errors) == (3, 0, 2)
    assert two.ttft.count == 2


def test_a_stream_whose_beginning_was_missed_is_counted_as_not_seen(told: Told) -> None:
    told.versions.count(told.log.ended("chat", end(), SLO, "none"))
    assert set(told.versions.figures("chat")) == {UNSEEN}


def test_a_stream_outlives_its_version_as_another(told: Told) -> None:
    told.log.started("chat", start(), told.of(b"v0"))
    told.now_s = IDLE_S
    for n in range(1, MOST + 1):
        told.of(f"v{n}".encode())
    told.versions.count(told.log.ended("chat", end(), SLO, "none"))
    assert told.versions.figures("chat")[OTHER].streams == 1


def test_under_another_header_counting_begins_anew(told: Told) -> None:
    told.stream(b"v1")
    told.versions.ask({"chat": HEADER, "code": "x-v"})
    assert set(told.versions.figures("chat")) == {"v1"}
    told.versions.ask({"chat": "x-v"})
    assert told.versions.figures("chat") == {}
    told.stream(b"v1")
    assert set(told.versions.figures("chat")) == {ABSENT}
    told.versions.ask({"chat": None})
    assert told.versions.figures("chat") == {}
    told.stream(b"v1")
    assert told.versions.figures("chat") == {}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=60), max_size=40))
def test_whatever_is_sent_there_are_few_versions_and_all_are_plain(sent: list[bytes]) -> None:
    told = Told()
    for value in sent:
        told.stream(value)
    versions = told.versions.figures("chat")
    assert len(versions) <= MOST + 3
    assert all(version.isascii() and version.isprintable() for version in versions)
    assert sum(figures.streams for figures in versions.values()) == len(sent)
