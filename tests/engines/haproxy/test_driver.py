"""The driver on Debian's HAProxy, in front of two reference engines."""

from pathlib import Path

import pytest

from controller.adapters.driver import AdapterError, Driver, EngineChangedError
from controller.adapters.haproxy import connect
from tests.engines.haproxy.conftest import MAXCONN, servers
from tests.engines.haproxy.gate import Gate, ask_once, asking, haproxy, until
from tests.engines.reference_process import Running

pytestmark = pytest.mark.engines

START = {"max_running": 6.0, "max_queued": 1000.0}
TOKENS = 24


def driver_of(gate: Gate, **more: str) -> Driver:
    made = connect({"address": str(gate.admin), "backend": "engines", **more})
    made.identify()
    made.knobs()
    return made


@pytest.fixture
def driver(gate: Gate) -> Driver:
    return driver_of(gate)


def test_it_offers_what_the_configuration_has(gate: Gate, driver: Driver) -> None:
    knobs = driver.knobs()
    assert {name: (knob.minimum, knob.maximum, knob.start) for name, knob in knobs.items()} == {
        "max_running": (2, 6, 6),
        "max_queued": (1, 1000, 1000),
    }
    identity = driver.identify()
    assert (identity.engine, identity.pid) == ("haproxy", gate.worker)
    assert identity.version.startswith("2.6.")


def test_values_are_set_at_every_server_and_put_back(gate: Gate, driver: Driver) -> None:
    driver.write({"max_running": 3, "max_queued": 7})
    assert driver.read() == {"max_running": 3, "max_queued": 7}
    assert gate.maxconn == {"a": 2, "b": 1, "standby": 1}
    assert gate.max_queued == 7
    driver.write(START)
    assert gate.maxconn == MAXCONN
    assert driver.read() == START


@pytest.mark.parametrize("wrong", [-3, 0, 1, 7, 2.5, float("nan")])
def test_what_haproxy_would_take_in_silence_is_refused(
    gate: Gate, driver: Driver, wrong: float
) -> None:
    with pytest.raises(AdapterError):
        driver.write({**START, "max_running": wrong})
    assert driver.read() == START


def test_another_process_puts_back_what_the_sum_does_not_tell(gate: Gate, driver: Driver) -> None:
    driver.write({"max_running": 2, "max_queued": 5})
    later = connect({"address": str(gate.admin), "backend": "engines"})
    later.identify()
    later.recall(driver.keep())
    later.write(START)
    assert gate.maxconn == MAXCONN


def test_running_requests_are_limited_and_the_rest_waits_and_nobody_fails(
    gate: Gate, driver: Driver
) -> None:
    driver.write({**START, "max_running": 2})
    with asking(gate, clients=8, max_tokens=TOKENS) as asked:
        until(lambda: gate.column("qcur")["BACKEND"] >= 4, "a queue")
        seen = [driver.figures() for _ in range(20)]
        assert {each.running for each in seen} <= {0, 1, 2}
        assert max(each.waiting or 0 for each in seen) >= 4
        until(lambda: asked.total >= 20, "answers")
        driver.write(START)
        until(lambda: sum(gate.column("scur")[name] for name in ("a", "b")) == 6, "its six")
    assert asked.failures == []
    assert set(asked.statuses) == {200}


def test_a_queue_that_is_full_sheds_with_a_time_to_come_back_and_keeps_who_waits(
    gate: Gate, driver: Driver
) -> None:
    driver.write({"max_running": 2, "max_queued": 2})
    with asking(gate, clients=10, max_tokens=TOKENS) as asked:
        until(lambda: asked.statuses[503] >= 10 and asked.statuses[200] >= 10, "both")
        waiting = max(driver.figures().waiting or 0 for _ in range(20))
    assert waiting <= 3, "one more may slip in between two looks at the queue"
    assert asked.failures == []
    assert set(asked.statuses) == {200, 503}
    assert all(1 <= int(seconds) <= 60 for seconds in asked.retry_after)
    shed = driver.figures().shed_total
    assert shed is not None
    assert 0.8 * asked.statuses[503] <= shed <= asked.statuses[503]


def test_figures_count_what_was_answered(gate: Gate, driver: Driver) -> None:
    for _ in range(5):
        assert ask_once(gate, TOKENS)[0] == 200
    figures = driver.figures()
    assert (figures.waiting, figures.running) == (0, 0)
    assert (figures.requests_total, figures.finished_total, figures.shed_total) == (5, 5, 0)


def test_a_drained_server_hands_over_to_the_rest_and_the_last_to_the_standby(
    gate: Gate, driver: Driver
) -> None:
    with asking(gate, clients=4, max_tokens=TOKENS) as asked:
        until(lambda: asked.total >= 8, "answers")
        gate.ask("set server engines/a state drain")
        with pytest.raises(EngineChangedError, match="served by b now"):
            driver.identify()
        assert driver_of(gate).knobs()["max_running"].start == MAXCONN["b"]
        gate.ask("set server engines/b state drain")
        until(lambda: gate.column("scur")["standby"], "the standby")
        assert driver_of(gate).knobs()["max_running"].start == MAXCONN["standby"]
        gate.ask("set server engines/a state ready")
        gate.ask("set server engines/b state ready")
        until(lambda: gate.column("scur")["a"], "the first again")
        before = asked.total
        until(lambda: asked.total >= before + 8, "answers")
    assert asked.failures == []
    assert set(asked.statuses) == {200}


def test_one_server_can_be_limited_alone(gate: Gate) -> None:
    driver = driver_of(gate, server="a")
    assert driver.knobs()["max_running"].start == MAXCONN["a"]
    driver.write({"max_running": 1, "max_queued": 1000})
    assert gate.maxconn == {**MAXCONN, "a": 1}


def test_a_reload_is_another_instance_and_is_not_written_to(gate: Gate, driver: Driver) -> None:
    before = driver.identify()
    gate.reload()
    with pytest.raises(AdapterError, match="reloaded or restarted"):
        driver.write({**START, "max_running": 3})
    assert gate.maxconn == MAXCONN
    assert driver.identify().instance != before.instance


def test_without_the_variables_only_max_running_is_offered(
    engines: tuple[Running, Running], tmp_path: Path
) -> None:
    with haproxy(tmp_path, servers(engines), max_queued=None) as gate:
        driver = driver_of(gate)
        assert list(driver.knobs()) == ["max_running"]
        driver.write({"max_running": 3})
        assert driver.read() == {"max_running": 3}
        assert driver.figures().shed_total is None


def test_what_is_not_there_is_named(gate: Gate) -> None:
    for settings in ({"backend": "nowhere"}, {"backend": "engines", "server": "nobody"}):
        driver = connect({"address": str(gate.admin), **settings})
        with pytest.raises(AdapterError, match=r"no (backend 'nowhere'|server 'engines/nobody')"):
            driver.knobs()


def test_a_server_without_a_limit_is_named(gate: Gate) -> None:
    gate.ask("set maxconn server engines/b 0")
    with pytest.raises(AdapterError, match="server engines/b has no maxconn"):
        driver_of(gate)
