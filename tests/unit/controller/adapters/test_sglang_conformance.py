"""The SGLang adapter keeps the contract, over a recorded contract and not over SGLang."""

import os
import threading
from pathlib import Path

import pytest

from controller.adapters.session import Place, serve
from controller.conformance.check import Result
from controller.conformance.suite import run
from tests.engines.otlp_receiver import eventually
from tests.engines.test_conformance import failing
from tests.unit.controller.adapters.sglang_recorded import recorded_sglang


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_the_adapter_keeps_the_contract_and_leaves_the_server_as_it_was(
    tmp_path: Path, later: bool
) -> None:
    socket, stop = tmp_path / "admin", os.eventfd(0)
    with recorded_sglang(later=later) as server:
        before = [dict(state) for state in server.states]
        place = Place(
            "sglang", {"address": f"127.0.0.1:{server.port}"}, socket, None, tmp_path / "undo"
        )
        thread = threading.Thread(target=serve, args=(place, [stop], lambda *_: None))
        thread.start()
        try:
            eventually(socket.exists)
            report = run(socket, patience=3)
        finally:
            os.eventfd_write(stop, 1)
            thread.join()
            os.close(stop)
        assert failing(report) == {}
        assert report.count(Result.PASS) > report.count(Result.NOT_APPLICABLE)
        assert server.states == before
