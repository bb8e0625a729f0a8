"""Spans of real requests, through the real kernel and the real daemon, at a real receiver."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from controller.policy import parse_policy
from controller.policy_tables import HIDDEN
from tests.engines.otlp_receiver import Received, Receiver, otlp_receiver
from tests.engines.reference_process import Client

from .conftest import Node
from .rig import Site, Sitsd
from .traffic import load
from .waiting import becomes

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"TRACEPARENT: 00-{TRACE}-{PARENT}-00"
NAME = "POST /v1/completions"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as made:
        yield made


def otel(receiver: Receiver, more: str = "") -> str:
    return f"""
[otel]
endpoint = "{receiver.endpoint("grpc")}"
sample_ratio = 0
resource = {{ "deployment.environment.name" = "test" }}
{more}
"""


def ask(client: Client, header: str = "", max_tokens: int = 4) -> int:
    """One streamed completion with one header more; how many chunks came."""
    fields = {"prompt": "hello", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    body = json.dumps(fields).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: a", f"content-length: {len(body)}"]
    head = "\r\n".join([*lines, *([header] if header else [])]) + "\r\n\r\n"
    client.sock.sendall(head.encode() + body)
    status, _ = client.read_head()
    assert status == 200
    chunks = 0
    while chunk := client.read_chunk():
        chunks += chunk != b"data: [DONE]\n\n"
    return chunks


def ended(sitsd: Sitsd, count: int) -> None:
    becomes(lambda: len(sitsd.api.streams("chat", 0, 1000)["streams"]) >= count)


def requests(receiver: Receiver, count: int) -> list[Received]:
    return receiver.wait_for(count, NAME)


def test_a_request_is_the_child_of_its_caller_and_begins_after_it(
    node: Node, site: Site, receiver: Receiver
) -> None:
    site.write(node.targets() + otel(receiver))
    with receiver.running(), site.sitsd() as sitsd:
        sitsd.following()
        with Client(node.engine) as client:
            ask(client, UNSAMPLED)
            ask(client)
            before_ns = time.time_ns()
            chunks = ask(client, SAMPLED)
            after_ns = time.time_ns()
            port = client.sock.getsockname()[1]
        (span,) = requests(receiver, 1)
        becomes(lambda: sitsd.metric("sits_spans_exported_total") == 1)
        assert sitsd.metric("sits_traceparent_invalid_total") == 0
        assert sitsd.end() == 0
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
    assert before_ns <= span.start_ns < span.end_ns
    # the end of the body is sent before the client has read it; the offset errs late by little
    assert span.end_ns <= after_ns + 50_000_000
    assert span.start_ns < span.events["sits.response_head"] <= span.events["sits.first_chunk"]
    assert span.events["sits.first_chunk"] < span.end_ns
    stage = span.attributes["gen_ai.server.time_to_first_token"]
    assert isinstance(stage, float)
    assert span.events["sits.first_chunk"] - span.start_ns == round(stage * 1e9)
    assert span.attributes["sits.chunks"] == chunks
    assert span.attributes["client.port"] == port
    assert span.attributes["server.port"] == node.engine.port
    assert span.attributes["ebpf.pid"] in engine_pids(node)
    assert span.attributes["sits.kept"] == "caller"
    assert span.resource["deployment.environment.name"] == "test"


def test_a_caller_is_seen_behind_much_else_in_the_head(
    node: Node, site: Site, receiver: Receiver
) -> None:
    """As a common client's is: authorization, agent and its own headers come first."""
    others = f"authorization: Bearer {'k' * 164}\r\nx-client: {'v' * 400}"
    site.write(node.targets() + otel(receiver))
    with receiver.running(), site.sitsd() as sitsd:
        sitsd.following()
        with Client(node.engine) as client:
            ask(client, f"{others}\r\n{SAMPLED}")
        (span,) = requests(receiver, 1)
        assert sitsd.metric("sits_request_heads_cut_total") == 0
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)


def engine_pids(node: Node) -> set[int]:
    engine = psutil.Process(node.engine.process.pid)
    return {engine.pid, *(child.pid for child in engine.children(recursive=True))}


def test_what_misses_its_slo_has_a_span_whatever_its_caller_says(
    node: Node, site: Site, receiver: Receiver
) -> None:
    site.write(node.targets(ttft_ms=1, gap_ms=1) + otel(receiver))
    with receiver.running(), site.sitsd() as sitsd:
        sitsd.following()
        with Client(node.engine) as client:
            ask(client, UNSAMPLED)
            ask(client)
            ask(client, "traceparent: 00-0-0-01")
        called, alone, malformed = requests(receiver, 3)
        assert sitsd.metric("sits_traceparent_invalid_total") == 1
    assert (called.trace_id, called.parent_id) == (TRACE, PARENT)
    assert alone.parent_id == malformed.parent_id == ""
    assert len({called.trace_id, alone.trace_id, malformed.trace_id}) == 3
    assert {each.attributes["sits.kept"] for each in (called, alone, malformed)} == {"slow"}


def test_decisions_are_linked_to_the_requests_they_were_made_for(
    node: Node, site: Site, receiver: Receiver
) -> None:
    site.write(node.targets(ttft_ms=1, gap_ms=1) + otel(receiver), mode="shadow")
    with receiver.running(), site.sitsd() as sitsd:
        sitsd.following()
        with load(node.engine, clients=4, max_tokens=48):
            becomes(sitsd.decisions)
            receiver.wait_for(1, "sits.decision")
        ended(sitsd, 4)
        assert sitsd.end() == 0
    spans = receiver.spans()
    by_id = {(each.trace_id, each.span_id): each for each in spans}
    decisions = [each for each in spans if each.name == "sits.decision"]
    assert all(each.attributes["sits.decision.ack"] == "shadow" for each in decisions)
    linked = {link for each in decisions for link in each.links}
    assert linked
    # an agent that ends knows of no end of what is under way: such links lead nowhere
    found = [by_id[link] for link in linked if link in by_id]
    assert found
    assert {each.name for each in found} == {NAME}


def test_a_collector_that_is_away_harms_nothing_and_gets_spans_when_it_is_back(
    node: Node, site: Site, receiver: Receiver
) -> None:
    site.write(node.targets() + otel(receiver, "max_queue = 2\ntimeout_ms = 1000\n"))
    with site.sitsd() as sitsd:
        sitsd.following()
        with Client(node.engine) as client:
            for _ in range(6):
                ask(client, SAMPLED)
            ended(sitsd, 6)
            status = sitsd.status(lambda s: any("collector" in p for p in s["problems"]))
            assert status["engines"][0]["totals"]["requests"] == 6
            assert sitsd.metric("sits_spans_dropped_total", why="queue_full") == 4
            with receiver.running():
                requests(receiver, 2)
                sitsd.status(lambda s: not any("collector" in p for p in s["problems"]))
                ask(client, SAMPLED)
                requests(receiver, 3)
        assert sitsd.end() == 0
    assert sitsd.log.count("do not reach the collector") == 1
    assert "Traceback" not in sitsd.log


def test_secrets_are_in_no_answer_and_in_no_log(
    node: Node, site: Site, receiver: Receiver, tmp_path: Path
) -> None:
    secret = "Bearer 3cQ7"
    site.write(
        node.targets()
        + otel(receiver, f'headers = {{ authorization = "{secret}" }}\ntimeout_ms = 100\n')
    )
    with site.sitsd() as sitsd:
        sitsd.following()
        with Client(node.engine) as client:
            ask(client, SAMPLED)
        sitsd.status(lambda s: any("collector" in p for p in s["problems"]))
        answers = json.dumps([sitsd.api.policy(), sitsd.api.status(), sitsd.api.journal(100)])
        shown = subprocess.run(
            [
                *(sys.executable, "-m", "agent.sitsctl", "policy", "show"),
                *("--socket", str(site.admin_socket)),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert secret not in answers + shown + sitsd.log
    policy = parse_policy(shown, "shown")
    assert policy.otel.headers == {"authorization": HIDDEN}
    assert policy.otel.resource == {"deployment.environment.name": "test"}
