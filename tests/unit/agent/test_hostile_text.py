"""Text from attackers (names, heads, an engine's words) in every place where it is shown again.

Each goes through the real renderers: the exposition and its own parser, the OTLP encoder, the
command's output, the journal's database, the log.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.discovery import distinct_names
from agent.figures import Figures
from agent.metrics import FiguresCollector
from agent.neighbour_metrics import NeighbourFigures
from agent.otel import OtlpExporter
from agent.request_head import SpanRef, read_head
from agent.sitsctl import main
from agent.spans import Beginning, Meanwhile, Span, decision_span, request_span
from agent.version_metrics import version_families
from agent.versions import MOST, Versions
from bpf.layout import Counters, Health
from controller.journal import Event, Journal
from controller.policy_model import Otel
from tests.unit.agent.recorded import RecordedView, served
from tests.unit.agent.test_spans import ended

NASTY = "\n\r\t\v\f\x1b\x07\0\x7f\x9b\u2028\u2029\u202e\u2066\u200f\"\\'{}=,#[]\udc80\ud800😀é"
HOSTILE = st.text(st.sampled_from(NASTY) | st.characters(), max_size=40)
BYTES = st.binary(max_size=120) | HOSTILE.map(lambda text: text.encode(errors="surrogatepass"))
FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Fixed:
    """A collector of what it is given."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        yield from self._families


def exposed(collector: Any) -> list[Any]:
    """All samples of a collector, after they went over the wire as text."""
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    for line in text.split("\n"):
        assert line == "" or line.startswith(("# HELP sits_", "# TYPE sits_", "sits_"))
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def figures(neighbours: list[str]) -> Figures:
    return Figures(
        mode="observe",
        controller_up=True,
        controller_restarts=0,
        engines=(),
        neighbours=tuple(NeighbourFigures(name, Counters(), 0.5, 1.0) for name in neighbours),
        health=Health(),
        loop=None,
        decisions={},
        knob_changes={},
        journal_dropped=0,
    )


@FEW
@given(cgroups=st.lists(HOSTILE.filter(bool), max_size=5, unique=True))
def test_cgroups_of_any_names_are_each_one_series_of_the_exposition(cgroups: list[str]) -> None:
    found = [(each, f"/batch.slice/{each}") for each in cgroups]
    names = [name for name, _ in distinct_names("batch", found)]
    quotas = [
        sample.labels["target"]
        for sample in exposed(FiguresCollector(lambda: figures(names)))
        if sample.name == "sits_cpu_quota_cores"
    ]
    assert sorted(quotas) == sorted(names)
    assert len(set(names)) == len(cgroups)
    assert all(name.isprintable() and name.startswith("batch/") for name in names)


@FEW
@given(heads=st.lists(BYTES, max_size=20))
def test_version_headers_of_any_bytes_are_few_clean_series(heads: list[bytes]) -> None:
    versions = Versions()
    versions.ask({"chat": "x-version"})
    for head in heads:
        version = versions.of("chat", b"GET / HTTP/1.1\r\nx-version: " + head + b"\r\n\r\n")
        versions.count(replace(ended(), version=version))
    families = list(version_families({"chat": versions.figures("chat")}))
    told = {s.labels["version"] for s in exposed(Fixed(families)) if "version" in s.labels}
    assert len(told) <= MOST + 3
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+|\((none|unseen|other)\)", each) for each in told)


def encoded(span: Span) -> bytes:
    """A span as it goes to the collector."""
    exporter = OtlpExporter(Otel(endpoint="http://127.0.0.1:1", protocol="http"))
    try:
        return bytes(encode_spans([exporter._converted(span)]).SerializeToString())
    finally:
        exporter.close()


def texts(span: Span) -> Iterator[str]:
    yield from (span.name, span.failed)
    for value in span.attributes.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from value


@FEW
@given(line=BYTES, header=BYTES)
def test_a_head_of_any_bytes_makes_a_span_that_is_short_and_printable(
    line: bytes, header: bytes
) -> None:
    head = read_head(b"POST " + line + b" HTTP/1.1\r\ntraceparent: " + header + b"\r\n\r\n")
    span = request_span(ended(), Beginning(SpanRef(1, 2), head, 0), "slow", Meanwhile())
    assert all(text.isprintable() and len(text) < 2500 for text in texts(span))
    assert len(encoded(span)) < 8192


@FEW
@given(text=HOSTILE)
def test_a_decision_with_any_words_makes_a_span_that_is_printable(text: str) -> None:
    message = {
        "mono_ns": 1,
        "engine": "chat",
        "mode": "control",
        "cause": "batch",
        "action": [{"target": text, "knob": text, "from": text, "to": 1}],
        "reason": text,
        "signals": {"x": 1.0},
    }
    span = decision_span(message, "applied", 5, SpanRef(1, 2), 0, ())
    assert all(each.isprintable() for each in texts(span))
    assert encoded(span)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RecordedView, Path]]:
    view = RecordedView()
    with served(view, tmp_path_factory.mktemp("hostile") / "admin.sock") as path:
        yield view, path


COMMANDS = ["status", "engines", "streams", "explain", "journal", "doctor", "top"]


@FEW
@given(text=HOSTILE, command=st.sampled_from(COMMANDS))
def test_a_command_prints_any_words_as_lines_of_printable_text(
    agent: tuple[RecordedView, Path], text: str, command: str
) -> None:
    view, path = agent
    engine = view.state["engines"][0]
    engine |= {"detail": text, "cgroup": text, "cause_meaning": text}
    engine["engine"] = {"name": text, "version": text, "instance": text}
    view.state["neighbours"][0] |= {"name": text, "cgroup": text}
    view.state["problems"] = [text]
    view.explained["culprits"][0] |= {"command": text, "cgroup": text}
    view.findings[0]["detail"] = text
    for decision in view.decisions:
        decision |= {"reason": text}
    environment = {"SITS_SOCKET": str(path), "COLUMNS": "200"}
    done = CliRunner().invoke(main, [command], env=environment)
    assert done.exit_code in {0, 1}, done.stderr
    assert all(line.isprintable() for line in done.stdout.split("\n"))
    told = CliRunner().invoke(main, [command, "--json"], env=environment)
    assert told.stdout.isascii()
    assert told.stdout.count("\n") == 1
    assert json.loads(told.stdout)


@FEW
@given(subject=HOSTILE, detail=HOSTILE)
def test_an_event_of_any_words_is_kept_and_told_again(
    tmp_path_factory: pytest.TempPathFactory, subject: str, detail: str
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "journal.db")
    try:
        journal.add_event(Event(1, "engine_lost", subject, {"detail": detail}))
        (row,) = journal.recent_events(5)
    finally:
        journal.close()
    assert row.event.kind == "engine_lost"
    assert json.loads(json.dumps(row.as_dict()))["kind"] == "engine_lost"
    assert journal.dropped == 0
