"""The process that looks and the agent's half, over NVML's real binding and a library of ours."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from agent import gpu as gpu_module
from agent.gpu import Gpus, Owner
from agent.gpu_budget import Worth
from agent.gpu_metrics import GpuFigures, gpu_families
from agent.gpu_model import FAILED, HUNG, NO_DRIVER, NONE, OFF, OK

from .conftest import MIB, Stub, gpu

PATIENCE_S = 60.0
ENGINE, HOG, OTHER, CODE = 4_000_001, 4_000_002, 4_000_003, 4_000_004
OWNERS = {
    CODE: Owner("code", "engine", "python3", "/code"),
    ENGINE: Owner("chat", "engine", "python3", "/engine"),
    HOG: Owner("batch", "neighbour", "train", "/batch"),
    OTHER: Owner(None, "", "stranger", "/x"),
}
LOST, RESET, NO_PERMISSION, NOT_LOADED, MISMATCH = 15, 16, 4, 9, 18


@contextmanager
def looking(stub: Stub, interval_ms: int = 50) -> Iterator[Gpus]:
    made = Gpus(interval_ms, OWNERS.__getitem__, stub.environment)
    try:
        yield made
    finally:
        made.stop()


def until(gpus: Gpus, fits: Callable[[Gpus], object]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not fits(gpus):
        gpus.tick()
        assert time.monotonic() < ends_s, gpus.status()
        time.sleep(0.01)


def test_every_figure_of_every_gpu_comes_through(stub: Stub) -> None:
    stub.say(
        gpu(0, reasons=0x4 | 0x40 | 0x1),
        gpu(1, util=0, used=0),
        f"proc 0 {ENGINE} {20_000 * MIB} 40 -1 -1",
        f"proc 0 {HOG} {5_000 * MIB} 15 -1 -1",
        f"proc 1 {OTHER} {1 * MIB} 0 -1 -1",
    )
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        status = gpus.status()
    first, second = status["devices"]
    assert (status["text"], status["driver"]) == ("ok", "999.1")
    assert first["sm_percent"] == 55
    assert first["memory_total_bytes"] == 80_000 * MIB
    assert first["memory_used_bytes"] == 30_000 * MIB
    assert (first["power_w"], first["power_limit_w"], first["temperature_c"]) == (250, 400, 61)
    assert first["throttled"] == ("power cap", "hardware thermal")
    assert second["throttled"] == ()
    assert [(p["target"], p["kind"], p["sm_percent"]) for p in first["processes"]] == [
        ("chat", "engine", 40),
        ("batch", "neighbour", 15),
    ]
    assert [(p["target"], p["command"], p["sm_percent"]) for p in second["processes"]] == [
        (None, "stranger", 0)
    ]


def test_what_engines_should_have_of_a_full_gpu_is_told(stub: Stub) -> None:
    stub.say(
        gpu(0, util=100),
        f"proc 0 {ENGINE} {20_000 * MIB} 60 -1 -1",
        f"proc 0 {CODE} {5_000 * MIB} 40 -1 -1",
    )
    worth = {"chat": Worth(0.25, load_ratio=2.0), "code": Worth(0.7, load_ratio=1.5)}
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        figures = GpuFigures(gpus.look, gpus.owners, worth)
    (family,) = (
        each for each in gpu_families(figures) if each.name == "sits_gpu_advised_share_ratio"
    )
    shares = {each.labels["engine"]: each.value for each in family.samples}
    assert shares == {"code": pytest.approx(0.6), "chat": pytest.approx(0.4)}


def test_mig_instances_come_and_go_with_the_mode_and_use_is_unknown_under_it(stub: Stub) -> None:
    stub.say(gpu(0))
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        assert gpus.look.devices[0].instances == ()
        stub.say(
            gpu(0, mig=True),
            f"mig 0 1 0 {20_000 * MIB} {3_000 * MIB}",
            f"mig 0 2 0 {20_000 * MIB} 0",
            f"proc 0 {ENGINE} {3_000 * MIB} 40 1 0",
        )
        until(gpus, lambda g: g.look.devices[0].mig)
        (device,) = gpus.look.devices
        assert [each.name for each in device.instances] == ["0/1/0", "0/2/0"]
        assert device.instances[0].memory_used_bytes == 3_000 * MIB
        assert device.sm_percent is None
        assert [(p.instance, p.sm_percent) for p in device.processes] == [("0/1/0", None)]
        stub.say(gpu(0))
        until(gpus, lambda g: not g.look.devices[0].mig)
        assert gpus.look.devices[0].instances == ()


@pytest.mark.parametrize(
    ("error", "word"), [(LOST, "GPU is lost"), (RESET, "GPU requires restart")]
)
def test_a_gpu_that_is_lost_is_told_the_others_stay_and_it_comes_back(
    stub: Stub, error: int, word: str
) -> None:
    stub.say(gpu(0), gpu(1))
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        stub.say(gpu(0), gpu(1, error=error))
        until(gpus, lambda g: g.look.devices[1].lost)
        assert gpus.look.devices[1].lost == word
        assert gpus.look.devices[1].memory_used_bytes is None
        assert gpus.look.devices[0].sm_percent == 55
        stub.say(gpu(0), gpu(1))
        until(gpus, lambda g: not g.look.devices[1].lost)


def test_what_is_not_allowed_is_unknown_and_not_zero(stub: Stub) -> None:
    stub.say(
        gpu(0),
        f"refuse nvmlDeviceGetProcessUtilization {NO_PERMISSION}",
        f"refuse nvmlDeviceGetPowerUsage {NO_PERMISSION}",
        f"refuse nvmlDeviceGetMemoryInfo {NO_PERMISSION}",
        f"proc 0 {ENGINE} {5 * MIB} 40 -1 -1",
    )
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        (device,) = gpus.look.devices
    assert device.lost == ""
    assert (device.power_w, device.memory_used_bytes) == (None, None)
    assert device.processes[0].sm_percent is None
    assert device.sm_percent == 55


def test_no_library_is_none(tmp_path: object) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    gpus = Gpus(50, OWNERS.__getitem__, environment)
    try:
        until(gpus, lambda g: g.look.detail)
    finally:
        gpus.stop()
    # a machine with a driver has GPUs, or says why not
    assert gpus.look.state == NONE or gpus.look.driver or gpus.look.state in {NO_DRIVER, FAILED}


@pytest.mark.parametrize(
    ("error", "state", "word"),
    [
        (NOT_LOADED, NO_DRIVER, "Driver Not Loaded"),
        (MISMATCH, FAILED, "mismatch"),
        (999, FAILED, "Unknown Error"),
    ],
)
def test_a_driver_that_is_not_there_or_fails_is_a_state(
    stub: Stub, error: int, state: str, word: str
) -> None:
    stub.say(f"init {error}")
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.detail)
        assert gpus.look.state == state
        assert word in gpus.look.text


def test_a_driver_that_fails_later_is_a_state_and_it_recovers(stub: Stub) -> None:
    stub.say(gpu(0))
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        stub.say(gpu(0), "refuse nvmlDeviceGetCount_v2 999")
        until(gpus, lambda g: g.look.state == FAILED)
        stub.say(gpu(0))
        until(gpus, lambda g: g.look.state == OK)


def test_a_driver_that_hangs_is_told_stops_nobody_and_is_asked_again(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_module, "HUNG_AFTER_S", 0.5)
    monkeypatch.setattr(gpu_module, "AGAIN_S", dict.fromkeys((OK, NONE, FAILED, HUNG), 0.1))
    stub.say(gpu(0))
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        stub.say(gpu(0), "hang nvmlDeviceGetMemoryInfo")
        longest_s = 0.0
        ends_s = time.monotonic() + PATIENCE_S
        while gpus.look.state != HUNG:
            began_s = time.thread_time()
            gpus.tick()
            longest_s = max(longest_s, time.thread_time() - began_s)
            assert time.monotonic() < ends_s
            time.sleep(0.01)
        assert gpus.look.text.startswith("hung: since ")
        assert gpus.look.devices == ()
        stub.say(gpu(0))
        until(gpus, lambda g: g.look.state == OK)


def test_no_second_process_is_started_while_the_first_can_not_be_killed(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_module, "HUNG_AFTER_S", 0.3)
    monkeypatch.setattr(gpu_module, "AGAIN_S", dict.fromkeys((OK, NONE, FAILED, HUNG), 0.0))
    # a process in a driver's hands does not die of a signal: neither does one that is not sent it
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    stub.say(gpu(0), "hang nvmlDeviceGetMemoryInfo")
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == HUNG)
        process = gpus._process
        assert process is not None
        for _ in range(30):
            gpus.tick()
            time.sleep(0.02)
        assert gpus._process is process
        monkeypatch.undo()
        process.send_signal(signal.SIGKILL)


def test_the_process_that_looks_ends_with_the_agent(stub: Stub) -> None:
    stub.say(gpu(0))
    with looking(stub) as gpus:
        until(gpus, lambda g: g.look.state == OK)
        process = gpus._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_an_interval_of_nothing_looks_never() -> None:
    gpus = Gpus(0, OWNERS.__getitem__)
    gpus.tick()
    assert (gpus.look.state, gpus._process) == (OFF, None)


def test_heat_is_by_whom(stub: Stub) -> None:
    stub.say(
        gpu(0),
        f"proc 0 {ENGINE} {5 * MIB} 40 -1 -1",
        f"proc 0 {OTHER} {5 * MIB} 10 -1 -1",
    )
    with looking(stub) as gpus:
        until(gpus, lambda g: g.heat.answer())
        (answer,) = gpus.heat.answer()
    assert (answer["device"], answer["step_s"]) == ("0", 5)
    assert {row["name"]: row["sm_percent"][-1] for row in answer["rows"]} == {
        "all": 55,
        "chat": 40,
        "stranger": 10,
    }
