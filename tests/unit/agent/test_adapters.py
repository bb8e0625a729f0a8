"""The agent's adapters, as processes; what they speak to is not there."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.adapters import BACKOFF, Adapters
from controller.policy import parse_policy
from controller.policy_model import Policy

PATIENCE_S = 60


def policy_with(directory: Path, *engines: str) -> Policy:
    text = f'[agent]\nrun_dir = "{directory}"\n'
    for port, name in enumerate(engines, start=1):
        text += f"[engines.{name}]\nport = {port}\n"
        text += f'adapter = {{ kind = "haproxy", address = "{directory}/none", backend = "b" }}\n'
    return parse_policy(text, "test")


@pytest.fixture
def adapters(tmp_path: Path) -> Iterator[Adapters]:
    made = Adapters(policy_with(tmp_path, "chat"))
    yield made
    made.stop()
    assert children() == []


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        try:
            if "controller.adapters.command" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def ticks_until(adapters: Adapters, true: Callable[[], object]) -> Any:
    ends = time.monotonic() + PATIENCE_S
    while not (value := true()):
        assert time.monotonic() < ends, adapters.status()
        adapters.tick()
        time.sleep(0.02)
    return value


def test_an_adapter_without_its_engine_says_so(adapters: Adapters) -> None:
    ticks_until(adapters, lambda: adapters.status()["chat"]["state"] == "unreachable")
    status = adapters.status()["chat"]
    assert "could not talk to HAProxy" in status["detail"]
    assert [child.pid for child in children()] == [status["pid"]]


def test_an_adapter_that_dies_is_started_again(adapters: Adapters) -> None:
    first = ticks_until(adapters, lambda: adapters.status()["chat"]["pid"])
    os.kill(first, signal.SIGKILL)
    ticks_until(adapters, lambda: adapters.status()["chat"]["state"] == "down")
    assert adapters.status()["chat"]["detail"] == "ended with signal 9"
    assert adapters.due_s <= time.monotonic() + BACKOFF.first_s
    ticks_until(adapters, lambda: adapters.status()["chat"]["pid"] not in {first, None})
    assert adapters.status()["chat"]["restarts"] == 1
    assert adapters.due_s == math.inf


def test_the_policy_starts_and_ends_adapters(adapters: Adapters, tmp_path: Path) -> None:
    first = ticks_until(adapters, lambda: adapters.status()["chat"]["pid"])
    adapters.set_policy(policy_with(tmp_path, "code"))
    assert list(adapters.status()) == ["code"]
    ticks_until(adapters, lambda: adapters.status()["code"]["pid"])
    ticks_until(adapters, lambda: first not in [child.pid for child in children()])


def test_an_undo_file_of_an_engine_that_has_no_adapter_any_more_is_run_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "old.undo.json").write_text("nonsense")
    Adapters(policy_with(tmp_path)).stop()
    assert "could not read undo file" in caplog.text
    assert (tmp_path / "adapters" / "old.undo.json.corrupt").exists()
