"""The driver on a real tritonserver, which serves requests meanwhile."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from controller.adapters.driver import AdapterError, Driver
from controller.adapters.triton import connect
from tests.engines.otlp_receiver import eventually
from tests.engines.triton.server import Server, traffic, triton_server

pytestmark = pytest.mark.engines

WINDOW = "batch_window_ms"
START = {WINDOW: 2.5}
CLIENTS = 4


def read_or_none(driver: Driver) -> Mapping[str, float] | None:
    try:
        return driver.read()
    except AdapterError:
        return None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with triton_server(tmp_path_factory.mktemp("triton")) as running:
        yield running


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = connect({"address": server.address, "model": "batcher", "metrics": server.metrics})
    with closing(made):
        made.identify()
        made.knobs()
        yield made
        made.write(START)


def test_a_window_is_set_read_back_and_put_back_and_no_request_is_lost(
    server: Server, driver: Driver
) -> None:
    with traffic(server.port, "batcher", CLIENTS) as load:
        for window_ms in (20, 7, 2.5):
            driver.write({WINDOW: window_ms})
            before = len(load.answered)
            assert driver.read() == {WINDOW: window_ms}
            while len(load.answered) < before + 2 * CLIENTS:
                time.sleep(0.01)
    assert not load.failed


def test_a_longer_window_gathers_what_comes_while_a_batch_could_start(
    server: Server, driver: Driver
) -> None:
    def waited_s() -> float:
        with traffic(server.port, "batcher", clients=1) as load:
            while len(load.answered) < 10:
                time.sleep(0.01)
        return sorted(took for _, took, _ in load.answered)[5]

    driver.write({WINDOW: 0})
    at_once_s = waited_s()
    driver.write({WINDOW: 150})
    assert waited_s() > at_once_s + 0.1


def test_a_value_that_triton_refuses_leaves_the_old_configuration_serving(
    server: Server, driver: Driver
) -> None:
    with traffic(server.port, "batcher", CLIENTS) as load:
        with pytest.raises(AdapterError, match="load model 'batcher'"):
            driver.write({WINDOW: -1})
        before = len(load.answered)
        assert driver.read() == START
        while len(load.answered) < before + CLIENTS:
            time.sleep(0.01)
    assert not load.failed


def test_what_is_in_force_already_is_no_reload(server: Server, driver: Driver) -> None:
    driver.write({WINDOW: 9})
    reloads = server.log().count("successfully loaded 'batcher'")
    driver.write({WINDOW: 9})
    assert server.log().count("successfully loaded 'batcher'") == reloads


def test_figures_grow_over_a_reload(server: Server, driver: Driver) -> None:
    with traffic(server.port, "batcher", CLIENTS) as load:
        first = driver.figures()
        while len(load.answered) < 50:
            time.sleep(0.01)
        second = driver.figures()
        driver.write({WINDOW: 11})
        after = len(load.answered)
        while len(load.answered) < after + 50:
            time.sleep(0.01)
        third = driver.figures()
    assert first.finished_total is not None
    assert second.finished_total is not None
    assert third.finished_total is not None
    assert second.finished_total - first.finished_total >= 50 - CLIENTS
    assert third.finished_total - second.finished_total >= 50
    assert second.ended
    assert all(step.step_ns > 0 and 1 <= step.prefill_tokens <= 8 for step in second.ended)
    assert second.max_batched_tokens == 8
    steps = [each.steps for each in (first, second, third)]
    assert steps == sorted(steps, key=lambda each: each or 0)
    assert third.steps != first.steps


def test_without_metrics_the_statistics_count_as_much(server: Server, driver: Driver) -> None:
    with closing(connect({"address": server.address, "model": "batcher"})) as blind:
        before, blind_before = driver.figures(), blind.figures()
        with traffic(server.port, "batcher", CLIENTS) as load:
            while len(load.answered) < 30:
                time.sleep(0.01)
        after, blind_after = driver.figures(), blind.figures()
    assert blind_after.waiting is None
    assert after.finished_total is not None
    assert before.finished_total is not None
    assert blind_after.finished_total is not None
    assert blind_before.finished_total is not None
    assert (
        after.finished_total - before.finished_total
        == blind_after.finished_total - blind_before.finished_total
        == len(load.answered)
    )


def test_instances_that_take_one_request_each_are_taken_away_and_given_back(
    server: Server,
) -> None:
    with closing(connect({"address": server.address, "model": "lanes"})) as lanes:
        lanes.identify()
        assert {name: knob.start for name, knob in lanes.knobs().items()} == {"concurrency": 3}
        with traffic(server.port, "lanes", CLIENTS) as load:
            for count in (1, 3):
                lanes.write({"concurrency": count})
                before = len(load.answered)
                assert lanes.read() == {"concurrency": count}
                while len(load.answered) < before + CLIENTS:
                    time.sleep(0.01)
        assert not load.failed


def test_a_model_that_is_not_there_is_said_so(server: Server) -> None:
    with closing(connect({"address": server.address, "model": "nothing"})) as other:
        other.identify()
        with pytest.raises(AdapterError, match="configuration of model 'nothing'"):
            other.knobs()


def test_a_server_that_restarts_is_another_instance_and_is_not_written_to(tmp_path: Path) -> None:
    with (
        triton_server(tmp_path) as running,
        closing(connect({"address": running.address, "model": "batcher"})) as driver,
    ):
        first = driver.identify()
        driver.knobs()
        driver.write({WINDOW: 30})
        running.kill()
        with pytest.raises(AdapterError):
            driver.read()
        running.start()
        assert eventually(partial(read_or_none, driver)) == START
        with pytest.raises(AdapterError, match="restarted"):
            driver.write({WINDOW: 40})
        assert driver.read() == START
        second = driver.identify()
        assert first.instance != second.instance
        assert (first.pid, second.version) != (second.pid, "")


def test_a_server_that_does_not_load_models_on_demand_offers_no_knob(tmp_path: Path) -> None:
    with (
        triton_server(tmp_path, "--model-control-mode=none") as running,
        closing(connect({"address": running.address, "model": "batcher"})) as driver,
    ):
        driver.identify()
        assert not driver.knobs()
        assert running.is_ready()
