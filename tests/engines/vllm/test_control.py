"""sitsd in control of a real vLLM: it retunes it under a load, and leaves nothing when killed."""

import signal
from concurrent.futures import Future

import pytest

from bpf.features import probe
from bpf.libbpf import Libbpf
from demo.sits import start_sitsd
from demo.stage import Stage
from demo.stats import Slo
from tests.engines.vllm.held import Watch, ask, until
from tests.engines.vllm.requests import Answer, Crowd

pytestmark = [pytest.mark.engines, pytest.mark.kernel]

HARSH = Slo(ttft_ms=100, gap_ms=5)
"""More than this engine can do for so many at once."""

MOST_REQUESTS = 400


def test_under_an_slo_it_can_not_meet_vllm_is_retuned_and_given_back(stage: Stage) -> None:
    if not probe(Libbpf()).can_stream:
        pytest.skip("this kernel can't follow streams")
    start = ask(stage.admin_socket, "get")["start"]
    watch = Watch(stage.page)
    sits = start_sitsd(stage.rig, stage, HARSH, "control")
    try:
        with Crowd(stage.port) as crowd:
            futures: list[Future[Answer]] = []
            # it may act before the first request: the page tells it of those of other tests
            while not futures or ask(stage.admin_socket, "get")["values"] == start:
                assert len(futures) < MOST_REQUESTS, "it never acted"
                futures += crowd.send_many(16, 300, 60, seed=2000 + len(futures))
                for future in futures[-8:]:
                    future.result()
            state = ask(stage.admin_socket, "get")
            assert state["owner"] is not None
            assert all(state["values"][name] <= start[name] for name in ("max_running",))
            stage.rig.stop(sits.process, signal.SIGKILL)
            until(lambda: ask(stage.admin_socket, "get")["values"] == start, "the start values")
            answers = [future.result() for future in futures]
    finally:
        if sits.process.poll() is None:
            stage.rig.stop(sits.process)
    assert watch.now().epoch == 0
    assert {(answer.status, len(answer.tokens)) for answer in answers} == {(200, 60)}
