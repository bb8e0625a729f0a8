"""The conformance suite on a real vLLM, while it serves and while it is idle."""

import pytest

from controller.conformance.check import Result
from controller.conformance.suite import run
from demo.stage import Stage
from tests.engines.test_conformance import failing
from tests.engines.vllm.requests import Crowd

pytestmark = pytest.mark.engines


def test_vllm_keeps_the_contract_and_loses_no_request(stage: Stage) -> None:
    idle = run(stage.admin_socket, patience=5)
    with Crowd(stage.port) as crowd:
        futures = crowd.send_many(8, 30, 1200)
        busy = run(stage.admin_socket, patience=5)
        answers = [future.result() for future in futures]
    assert failing(idle) == failing(busy) == {}
    assert busy.count(Result.PASS) > busy.count(Result.NOT_APPLICABLE)
    assert {(answer.status, len(answer.tokens)) for answer in answers} == {(200, 1200)}
