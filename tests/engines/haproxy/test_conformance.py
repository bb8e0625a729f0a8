"""The conformance suite on a real HAProxy behind its adapter, while it serves."""

from pathlib import Path

import pytest

from controller.conformance.check import Result
from controller.conformance.suite import run
from tests.engines.haproxy.gate import Gate, asking, until
from tests.engines.haproxy.test_adapter import adapter
from tests.engines.test_conformance import failing

pytestmark = pytest.mark.engines


def test_haproxy_behind_its_adapter_keeps_the_contract_and_loses_no_request(
    gate: Gate, tmp_path: Path
) -> None:
    with adapter(gate, tmp_path) as served:

        def restart() -> None:
            before = served.ask("hello")["instance"]
            gate.reload()
            until(lambda: served.serves() and served.ask("hello")["instance"] != before, "it")

        with asking(gate, clients=4, max_tokens=24) as asked:
            report = run(served.socket, patience=5)
        again = run(served.socket, patience=5, only=["restart"], restart=restart)
    assert failing(report) == {}
    assert failing(again) == {}
    assert again.count(Result.PASS) == 1
    assert report.count(Result.PASS) > report.count(Result.NOT_APPLICABLE)
    assert asked.failures == []
