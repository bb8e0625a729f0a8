"""HAProxy before a real vLLM that has no plug-in: concurrency, queue and shedding all the same."""

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.engines.page import PageReader
from tests.engines.haproxy.gate import Gate, Server, asking, free_port, haproxy, until
from tests.engines.haproxy.test_adapter import adapter
from tests.engines.vllm.install import home, install
from tests.engines.vllm.launch import ENDS_WITHIN_S, READY_WITHIN_S, command

pytestmark = pytest.mark.engines

MODEL = "tiny"
TOKENS = 24
MAXCONN = 8


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a vLLM that serves."""
    root, port = install(home()), free_port()
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(root, port), stdout=out, stderr=out, start_new_session=True
        )
    try:
        until(lambda: _answers(process, port, log), "vLLM's start", READY_WITHIN_S)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(ENDS_WITHIN_S)
        finally:
            process.kill()
            process.wait()


def _answers(process: "subprocess.Popen[bytes]", port: int, log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-4000:]
    time.sleep(0.5)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def gate(vllm: int, tmp_path: Path) -> Iterator[Gate]:
    with haproxy(tmp_path, [Server("a", vllm, MAXCONN)]) as made:
        yield made


def test_a_vllm_without_a_plug_in_gets_as_many_requests_as_is_set_and_no_answer_fails(
    gate: Gate, tmp_path: Path
) -> None:
    with adapter(gate, tmp_path) as made:
        reader, most = PageReader(made.page), []
        with asking(gate, clients=10, max_tokens=TOKENS, model=MODEL) as asked:
            with made.holding(max_running=2, max_queued=3):
                until(lambda: gate.column("scur")["a"] == 2, "no more than two", 120)
                until(lambda: asked.statuses[200] >= 6 and asked.statuses[503], "answers", 240)
                for _ in range(40):
                    got = reader.read()
                    assert got is not None
                    most.append(got[0].running)
                    time.sleep(0.02)
            until(lambda: gate.column("scur")["a"] > 2, "more at once", 120)
        reader.close()
        assert max(most) == 2
        assert asked.failures == []
        assert set(asked.statuses) == {200, 503}
        assert all(1 <= int(seconds) <= 60 for seconds in asked.retry_after)
    assert gate.process.poll() is None
