"""The conformance suite on a real tritonserver behind its adapter, while it serves."""

from pathlib import Path

import pytest

from controller.conformance.check import Result
from controller.conformance.suite import run
from tests.engines.otlp_receiver import eventually
from tests.engines.test_conformance import failing
from tests.engines.triton.server import traffic, triton_server
from tests.engines.triton.test_adapter import adapter

pytestmark = pytest.mark.engines


def test_triton_behind_its_adapter_keeps_the_contract_and_loses_no_request(tmp_path: Path) -> None:
    with triton_server(tmp_path) as server, adapter(server) as served:

        def restart() -> None:
            server.kill()
            eventually(lambda: served.state() is None)
            server.start()
            eventually(lambda: served.state() is not None)

        with traffic(server.port, "batcher", 2) as load:
            report = run(served.socket, patience=5)
        assert not load.failed
        again = run(served.socket, patience=5, only=["restart"], restart=restart)
    assert failing(report) == {}
    assert failing(again) == {}
    assert again.count(Result.PASS) == 1
    assert report.count(Result.PASS) > report.count(Result.NOT_APPLICABLE)
