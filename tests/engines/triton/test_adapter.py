"""`sits-adapter triton` on a real tritonserver, which serves requests meanwhile."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.engines.client import EngineError, call
from controller.engines.page import PageReader, Step
from controller.kept_file import SUFFIX
from tests.engines.otlp_receiver import eventually
from tests.engines.triton.server import Server, traffic, triton_server

pytestmark = pytest.mark.engines

WINDOW = "batch_window_ms"
START = {WINDOW: 2.5}
CLIENTS = 4
COMMAND = (sys.executable, "-m", "controller.adapters.command", "triton")


@dataclass(slots=True)
class Adapter:
    process: subprocess.Popen[bytes]
    socket: Path
    page: Path
    undo: Path

    def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        return dict(call(self.socket, name, 5, **fields))

    def set(self, epoch: int, window_ms: float, lease_ms: int = 10_000) -> dict[str, Any]:
        values = {WINDOW: window_ms}
        return self.ask("set", owner="test", epoch=epoch, lease_ms=lease_ms, values=values)

    def state(self) -> dict[str, Any] | None:
        """None while it does not serve."""
        try:
            return self.ask("get")
        except EngineError:
            return None

    def has(self, window_ms: float) -> Callable[[], bool]:
        """Whether that is in force, and nothing on its way."""

        def found() -> bool:
            state = self.state() or {"values": {}, "pending": {}}
            return bool(state["values"] == {WINDOW: window_ms} and not state["pending"])

        return found


@contextmanager
def adapter(server: Server) -> Iterator[Adapter]:
    """One that serves; ended at the end, and with success."""
    place = server.directory
    socket, page, undo = (place / name for name in ("admin", "page", f"triton{SUFFIX}"))
    arguments = [
        *("--address", server.address, "--model", "batcher", "--metrics", server.metrics),
        *("--admin-socket", str(socket), "--page", str(page), "--undo-file", str(undo)),
    ]
    with (
        (place / "adapter.log").open("ab") as log,
        subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log) as process,
    ):
        made = Adapter(process, socket, page, undo)
        try:
            eventually(lambda: made.state() is not None)
            yield made
        finally:
            if process.poll() is None:
                process.terminate()
                assert process.wait(30) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with triton_server(tmp_path_factory.mktemp("triton")) as running:
        yield running


def in_force(server: Server) -> float:
    """As Triton itself says it."""
    from tritonclient.grpc import InferenceServerClient

    client = InferenceServerClient(server.address)
    config = client.get_model_config("batcher").config
    client.close()
    return float(config.dynamic_batching.max_queue_delay_microseconds) / 1000


def test_a_window_is_set_under_a_lease_and_goes_back_when_nobody_renews_it(server: Server) -> None:
    with adapter(server) as served, traffic(server.port, "batcher", CLIENTS) as load:
        hello = served.ask("hello", protocol=[1])
        assert (hello["engine"], hello["version"]) == ("triton", "2.51.0")
        knob = hello["knobs"][WINDOW]
        assert (knob["min"], knob["start"], knob["max"], knob["cost"]) == (0, 2.5, 200, "reload")
        assert served.set(1, 25, lease_ms=3000)["pending"] == {WINDOW: 25}
        eventually(served.has(25))
        assert in_force(server) == 25
        eventually(served.has(2.5))
        assert in_force(server) == 2.5
        assert served.ask("stats")["now"]["lease_expiries_total"] == 1
    assert not load.failed
    assert len(load.answered) > CLIENTS


def test_no_request_is_lost_over_ten_reloads(server: Server) -> None:
    with adapter(server) as served, traffic(server.port, "batcher", CLIENTS) as load:
        for epoch in range(1, 11):
            served.set(epoch, 5 + epoch)
            eventually(served.has(5 + epoch))
        served.ask("release", owner="test")
        eventually(served.has(2.5))
    assert not load.failed


def test_the_page_shows_batches_as_steps_and_who_waits_for_one(server: Server) -> None:
    with adapter(server) as served, traffic(server.port, "batcher", CLIENTS) as load:
        served.set(1, 200)
        eventually(served.has(200))
        reader = PageReader(served.page)
        steps: dict[int, Step] = {}

        def has_seen_all() -> bool:
            shown = reader.read(max(steps, default=0))
            assert shown is not None
            now, fresh = shown
            steps.update({step.index: step for step in fresh})
            return bool(steps) and now.waiting > 0 and now.max_batched_tokens == 8

        eventually(has_seen_all)
        reader.close()
    assert not load.failed
    assert {step.prefill_tokens for step in steps.values()} <= set(range(1, 9))
    assert all(step.step_ns > 0 and not step.decode_seqs for step in steps.values())


def test_a_value_out_of_range_is_refused_and_nothing_is_reloaded(server: Server) -> None:
    with adapter(server) as served:
        reloads = server.log().count("successfully loaded 'batcher'")
        with pytest.raises(EngineError) as refused:
            served.set(1, 201)
        assert refused.value.code == "out_of_range"
        assert server.log().count("successfully loaded 'batcher'") == reloads
        assert in_force(server) == 2.5


def test_what_somebody_else_loads_under_a_lease_is_his(server: Server) -> None:
    from tritonclient.grpc import InferenceServerClient

    with adapter(server) as served:
        served.set(1, 30)
        eventually(served.has(30))
        client = InferenceServerClient(server.address)
        config = client.get_model_config("batcher", as_json=True)["config"]
        config["dynamic_batching"]["max_queue_delay_microseconds"] = "77000"
        client.load_model("batcher", config=json.dumps(config))

        def yielded() -> bool:
            state = served.state()
            return state is not None and "changed by other means" in str(state["owner"])

        eventually(yielded)
        assert in_force(server) == 77
        config["dynamic_batching"]["max_queue_delay_microseconds"] = "2500"
        client.load_model("batcher", config=json.dumps(config))
        client.close()


def test_a_killed_adapter_s_change_is_undone_at_its_next_start(server: Server) -> None:
    with adapter(server) as served:
        served.set(1, 40)
        eventually(served.has(40))
        served.process.kill()
        served.process.wait()
        assert in_force(server) == 40
        assert served.undo.exists()
        with adapter(server) as next_one:
            assert next_one.ask("get")["values"] == START
            assert in_force(server) == 2.5
            assert not next_one.undo.exists()


def test_a_killed_adapter_s_change_is_undone_by_the_stop_step(server: Server) -> None:
    with adapter(server) as served:
        served.set(1, 40)
        eventually(served.has(40))
        served.process.kill()
        served.process.wait()
        done = subprocess.run(
            [*COMMAND[:-1], "--undo", str(server.directory)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "batch_window_ms 40 → 2.5" in done.stdout
        assert in_force(server) == 2.5


def test_a_server_killed_under_a_lease_comes_back_with_its_own_values(tmp_path: Path) -> None:
    with triton_server(tmp_path) as server, adapter(server) as served:
        instance = served.ask("hello", protocol=[1])["instance"]
        served.set(1, 40)
        eventually(served.has(40))
        server.kill()
        eventually(lambda: served.state() is None)
        server.start()
        eventually(served.has(2.5))
        assert served.ask("hello", protocol=[1])["instance"] != instance
        assert in_force(server) == 2.5
        served.set(1, 15)
        eventually(served.has(15))
