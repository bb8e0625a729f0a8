"""Two versions behind one engine's name, told apart by a header of their requests."""

import json

import pytest

from tests.engines.reference_process import Client, Running

from .conftest import Node
from .rig import Site
from .waiting import becomes

pytestmark = pytest.mark.kernel


def ask(engine: Running, max_tokens: int, *headers: str, path: str = "/v1/completions") -> int:
    """One completion with these headers more, on a connection of its own; its status."""
    fields = {"prompt": "hi", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    body = json.dumps(fields).encode()
    lines = [f"POST {path} HTTP/1.1", "host: a", f"content-length: {len(body)}", *headers]
    with Client(engine) as client:
        client.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        status, answered = client.read_head()
        if answered.get("transfer-encoding") == "chunked":
            while client.read_chunk():
                pass
    return status


def test_two_versions_are_split_in_metrics_and_streams(node: Node, site: Site) -> None:
    targets = node.targets()
    socket = f'admin_socket = "{node.engine.admin}"'
    site.write(targets.replace(socket, f'{socket}\nversion_header = "X-Canary-Version"'))
    with site.sitsd() as sitsd:
        sitsd.following()
        # wherever in the head it stands
        for before in ((), ("x-before: " + "b" * 700,), ("a: b",)):
            assert ask(node.engine, 8, *before, "x-canary-version: stable") == 200
        assert ask(node.engine, 4, "X-CANARY-VERSION: canary") == 200
        assert ask(node.engine, 4, "x-canary-version: canary", path="/nowhere") == 404
        assert ask(node.engine, 4) == 200
        assert ask(node.engine, 4, "x-canary-version: \x1b[31m") in {200, 400}

        def streams(version: str) -> float:
            labels = (("engine", "chat"), ("version", version))
            return sitsd.metrics().get(("sits_version_streams_total", labels), 0.0)

        counted = ("stable", "canary", "(none)", "(other)")
        becomes(lambda: [streams(version) for version in counted] == [3, 2, 1, 1])

        def figure(name: str, version: str) -> float:
            return sitsd.metric(f"sits_version_{name}", engine="chat", version=version)

        assert figure("errors_total", "stable") == 0
        assert figure("errors_total", "canary") == 1
        assert figure("time_to_first_token_seconds_count", "stable") == 3
        assert figure("time_to_first_token_seconds_count", "canary") == 1
        assert figure("chunk_gaps_total", "stable") == 3 * 7
        assert figure("chunk_gaps_total", "canary") == 3
        assert figure("longest_gap_seconds_count", "stable") == 3
        assert figure("chunk_gap_seconds_total", "stable") > 0
        versions = [each["version"] for each in sitsd.api.streams("chat")["streams"]]
        assert versions == [*["stable"] * 3, "canary", "canary", "(none)", "(other)"]


def test_without_a_header_in_the_policy_there_are_no_versions(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        assert ask(node.engine, 4, "x-canary-version: stable") == 200
        (stream,) = becomes(lambda: sitsd.api.streams("chat")["streams"])
        assert stream["version"] is None
        assert not any(name.startswith("sits_version_") for name, _ in sitsd.metrics())
