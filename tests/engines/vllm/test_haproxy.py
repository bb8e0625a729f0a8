"""HAProxy before a real vLLM whose own knobs nobody touches: concurrency, queue and shedding."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.engines.page import PageReader
from demo.stage import Stage
from tests.engines.haproxy.gate import Gate, Server, asking, haproxy, until
from tests.engines.haproxy.test_adapter import adapter
from tests.leases import renewed

pytestmark = pytest.mark.engines

MODEL = "tiny"
TOKENS = 8
MAXCONN = 8
PATIENCE_S = 240


@pytest.fixture
def gate(stage: Stage, tmp_path: Path) -> Iterator[Gate]:
    with haproxy(tmp_path, [Server("a", stage.port, MAXCONN)]) as made:
        yield made


def test_vllm_gets_as_many_requests_at_once_as_is_set_and_no_answer_fails(
    gate: Gate, tmp_path: Path
) -> None:
    with (
        adapter(gate, tmp_path) as made,
        asking(gate, clients=10, max_tokens=TOKENS, model=MODEL) as asked,
    ):
        until(lambda: gate.column("scur")["a"] > 2, "more than two at once", PATIENCE_S)
        with renewed(made.socket, "test", max_running=2, max_queued=3):
            until(lambda: gate.column("scur")["a"] <= 2, "no more than two", PATIENCE_S)
            until(lambda: shown(made.page) <= 2, "no more than two on the page", PATIENCE_S)
            answered, refused = asked.statuses[200], asked.statuses[503]
            seen: list[int] = []

            def enough() -> bool:
                seen.append(gate.column("scur")["a"])
                more = asked.statuses[200] >= answered + 6 and asked.statuses[503] > refused
                return bool(asked.failures) or more

            until(enough, f"answers and refusals: {asked.statuses}", PATIENCE_S)
            assert max(seen) == 2
            assert shown(made.page) <= 2
        made.ask("release", owner="test")
        until(lambda: gate.column("scur")["a"] > 2, "more than two again", PATIENCE_S)
    assert asked.failures == []
    assert set(asked.statuses) == {200, 503}
    told = [int(seconds) for seconds in asked.retry_after if seconds]
    assert told
    assert all(1 <= seconds <= 60 for seconds in told)
    assert gate.process.poll() is None


def shown(page: Path) -> int:
    """How many run, as the adapter tells it."""
    reader = PageReader(page)
    try:
        got = reader.read()
        assert got is not None
        return got[0].running
    finally:
        reader.close()
