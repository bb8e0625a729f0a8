"""sitsd beside vLLM: what the kernel measures against what vLLM's own histograms say.

vLLM's buckets are too coarse to compare (its first of a token's latency ends at 10 ms), so means
are compared: sums and counts are exact on both sides.
"""

import re
from collections.abc import Mapping, Sequence

import pytest

from bpf.features import probe
from bpf.libbpf import Libbpf
from demo.sits import Sits, start_sitsd
from demo.stage import Stage
from demo.stats import Slo
from demo.trace import Request
from tests.engines.vllm.held import until
from tests.engines.vllm.requests import get, metrics

pytestmark = [pytest.mark.engines, pytest.mark.kernel]

TTFT = "time_to_first_token_seconds"
PROMPT, ANSWER = 100, 60


def one_after_the_other(count: int) -> Sequence[Request]:
    return [Request(0.7 * number, PROMPT, ANSWER) for number in range(count)]


def at_once(count: int) -> Sequence[Request]:
    return [Request(0.0, PROMPT, ANSWER) for _ in range(count)]


class Kernel:
    """What sitsd exports of the engine."""

    def __init__(self, stage: Stage) -> None:
        policy = (stage.rig.run_dir / "policy.toml").read_text()
        found = re.search(r'metrics_address = "127\.0\.0\.1:(\d+)"', policy)
        assert found is not None
        self._port = int(found[1])

    def figures(self) -> Mapping[str, float]:
        samples = {}
        for line in get(self._port, "/metrics").splitlines():
            if line.startswith("sits_") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                samples[name.partition("{")[0].removeprefix("sits_")] = float(value)
        return samples


@pytest.fixture
def sits(stage: Stage) -> Sits:
    if not probe(Libbpf()).can_stream:
        pytest.skip("this kernel can't follow streams")
    return start_sitsd(stage.rig, stage, Slo(5000, 1000))


@pytest.mark.parametrize(
    "plan", [one_after_the_other(8), at_once(8)], ids=["one after the other", "eight at once"]
)
def test_the_kernel_and_vllm_measure_the_same(
    stage: Stage, sits: Sits, plan: Sequence[Request]
) -> None:
    try:
        kernel = Kernel(stage)
        before, said = kernel.figures(), metrics(stage.port)
        sent = stage.send("agreement", plan)
        assert [each.error for each in sent.records] == [""] * len(plan)
        until(
            lambda: (
                kernel.figures().get("streams_ended_total", 0)
                >= before.get("streams_ended_total", 0) + len(plan)
            ),
            "the streams' ends",
        )
        after, said_after = kernel.figures(), metrics(stage.port)
    finally:
        stage.rig.stop(sits.process)

    def ours(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    def theirs(name: str) -> float:
        return said_after[f"vllm:{name}"] - said.get(f"vllm:{name}", 0.0)

    assert ours(f"{TTFT}_count") == theirs(f"{TTFT}_count") == len(plan)
    kernel_ttft = ours(f"{TTFT}_sum") / len(plan)
    vllm_ttft = theirs(f"{TTFT}_sum") / len(plan)
    # ours begins with the request's first byte and ends when the chunk leaves: before and after
    assert vllm_ttft <= kernel_ttft
    chunks, tokens = ours("chunks_total"), theirs("generation_tokens_total")
    assert tokens == len(plan) * ANSWER
    assert ours("events_total") == tokens
    # where a lagging API server puts two tokens into one chunk, there is one gap less
    assert chunks <= tokens
    assert ours("chunk_gap_seconds_count") == chunks - len(plan)
    assert theirs("inter_token_latency_seconds_count") == tokens - len(plan)
    # and still all gaps of a stream together are from its first token to its last
    assert ours("chunk_gap_seconds_sum") == pytest.approx(
        theirs("inter_token_latency_seconds_sum"), rel=0.1
    )
