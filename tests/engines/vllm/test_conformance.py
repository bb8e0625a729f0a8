"""The conformance suite on a vLLM that serves over HTTP with the plug-in, idle and under load."""

import pytest

from controller.conformance.suite import run
from demo.stage import Stage
from tests.engines.test_conformance import failing, left_out
from tests.engines.vllm.requests import Crowd

pytestmark = pytest.mark.engines

PATIENCE = 5
LEFT_OUT = {"restart", "punctual-end"}


def test_an_idle_vllm_keeps_the_contract(stage: Stage) -> None:
    report = run(stage.admin_socket, patience=PATIENCE, thorough=True)
    assert failing(report) == {}
    assert left_out(report) <= LEFT_OUT


def test_a_vllm_that_serves_keeps_the_contract_and_loses_no_request(stage: Stage) -> None:
    with Crowd(stage.port) as crowd:
        futures = crowd.send_many(8, 40, 1500)
        report = run(stage.admin_socket, patience=PATIENCE)
        assert not all(future.done() for future in futures)
        answers = [future.result() for future in futures]
    assert failing(report) == {}
    assert left_out(report) <= LEFT_OUT | {"unread", "crowd"}
    assert {(answer.status, len(answer.tokens)) for answer in answers} == {(200, 1500)}
