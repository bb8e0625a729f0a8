"""The adapter's process between a client of the contract and a real HAProxy."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.engines.client import EngineError, call
from controller.engines.page import PageReader
from tests.engines.haproxy.conftest import MAXCONN
from tests.engines.haproxy.gate import Gate, asking, until

pytestmark = pytest.mark.engines

KILLS = 25


@dataclass(slots=True)
class Adapter:
    process: "subprocess.Popen[bytes]"
    socket: Path
    page: Path
    undo: Path

    def ask(self, name: str, **fields: Any) -> Any:
        return call(self.socket, name, 10, **fields)

    def set(self, lease_ms: int = 10_000, **values: int) -> Any:
        epoch = self.ask("get")["epoch"] + 1
        return self.ask("set", owner="test", epoch=epoch, lease_ms=lease_ms, values=values)

    def serves(self) -> bool:
        with suppress(EngineError):
            return bool(self.ask("hello"))
        return False

    def becomes(self, **values: int) -> None:
        def fits() -> bool:
            state = self.ask("get")
            return bool(state["state"] == "applied" and state["values"].items() >= values.items())

        until(fits, str(values))


@contextmanager
def adapter(gate: Gate, directory: Path, *, supervised: bool = False) -> Iterator[Adapter]:
    place = directory / "chat"
    undo = Path(f"{place}.undo.json")
    options = ["--address", str(gate.admin), "--backend", "engines"]
    options += ["--admin-socket", f"{place}.sock", "--page", f"{place}.page"]
    options += ["--undo-file", str(undo), *(["--supervised"] if supervised else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "controller.adapters.command", "haproxy", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    made = Adapter(process, Path(f"{place}.sock"), Path(f"{place}.page"), undo)
    try:
        until(made.serves, "the adapter")
        yield made
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def test_a_lease_holds_haproxy_s_values_and_its_end_brings_them_back(
    gate: Gate, tmp_path: Path
) -> None:
    with adapter(gate, tmp_path) as made:
        assert made.ask("hello")["engine"] == "haproxy"
        made.set(lease_ms=1500, max_running=3, max_queued=9)
        made.becomes(max_running=3, max_queued=9)
        assert (gate.maxconn["a"], gate.max_queued) == (2, 9)
        assert json.loads(made.undo.read_text())["kept"]["maxconn"] == MAXCONN
        until(lambda: gate.maxconn == MAXCONN, "the start values")
        until(lambda: not made.undo.exists(), "nothing to undo")
        assert gate.max_queued == 1000
        reader = PageReader(made.page)
        got = reader.read()
        reader.close()
        assert got is not None
        assert (got[0].epoch, got[0].max_running, got[0].lease_expiries_total) == (0, 6, 1)


def test_the_page_shows_the_load(gate: Gate, tmp_path: Path) -> None:
    with adapter(gate, tmp_path) as made, asking(gate, clients=12, max_tokens=24) as asked:
        reader = PageReader(made.page)

        def busy() -> bool:
            got = reader.read()
            return got is not None and got[0].running == 6 and got[0].waiting >= 4

        until(busy, "the load on the page")
        got = reader.read()
        reader.close()
        assert got is not None
        assert 0 < got[0].oldest_arrival_ns <= time.monotonic_ns()
    assert asked.failures == []


@pytest.mark.parametrize("ends", ["terminate", "stdin"])
def test_an_adapter_that_is_told_to_stop_gives_back(gate: Gate, tmp_path: Path, ends: str) -> None:
    with adapter(gate, tmp_path, supervised=ends == "stdin") as made:
        made.set(max_running=2)
        made.becomes(max_running=2)
        if ends == "stdin":
            assert made.process.stdin is not None
            made.process.stdin.close()
        else:
            made.process.terminate()
        assert made.process.wait(30) == 0
        assert gate.maxconn == MAXCONN
        assert not made.undo.exists()
        assert not made.socket.exists()
        assert not made.page.exists()


def test_whenever_the_adapter_is_killed_the_next_one_brings_the_start_values_back(
    gate: Gate, tmp_path: Path
) -> None:
    chance = random.Random(5)
    for _ in range(KILLS):
        with adapter(gate, tmp_path) as made:
            ends_s = time.monotonic() + chance.uniform(0, 0.05)
            while time.monotonic() < ends_s:
                made.set(max_running=chance.randint(2, 6), max_queued=chance.randint(1, 1000))
            made.process.kill()
            made.process.wait()
        with adapter(gate, tmp_path) as made:
            start = made.ask("hello")["knobs"]
            assert gate.maxconn == MAXCONN
            assert (start["max_running"]["start"], start["max_queued"]["start"]) == (6, 1000)
            assert gate.max_queued == 1000
            assert not made.undo.exists()


def test_undo_by_hand_brings_the_start_values_back(gate: Gate, tmp_path: Path) -> None:
    with adapter(gate, tmp_path) as made:
        made.set(max_running=2, max_queued=3)
        made.becomes(max_running=2)
        made.process.kill()
        made.process.wait()
    assert gate.maxconn == {"a": 1, "b": 1, "standby": 1}
    command = [sys.executable, "-m", "controller.adapters.command", "--undo", str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "max_running 2 → 6, max_queued 3 → 1000" in said.stdout
    assert gate.maxconn == MAXCONN
    assert gate.max_queued == 1000
    assert subprocess.run(command, check=True, capture_output=True).stdout == b""


def test_an_undo_file_of_an_engine_that_moved_away_does_not_keep_the_adapter_from_serving(
    gate: Gate, tmp_path: Path
) -> None:
    with adapter(gate, tmp_path) as made:
        made.set(max_running=2)
        made.becomes(max_running=2)
        made.process.kill()
        made.process.wait()
    left = json.loads(made.undo.read_text())
    left["settings"]["address"] = str(tmp_path / "elsewhere.sock")
    made.undo.write_text(json.dumps(left))
    with adapter(gate, tmp_path) as made:
        assert Path(f"{made.undo}.left").exists()
        assert made.ask("hello")["knobs"]["max_running"]["start"] == 2


def test_undo_leaves_an_adapter_that_runs_alone(gate: Gate, tmp_path: Path) -> None:
    with adapter(gate, tmp_path) as made:
        made.set(max_running=2)
        made.becomes(max_running=2)
        command = [sys.executable, "-m", "controller.adapters.command", "--undo", str(tmp_path)]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
        assert said.returncode == 1
        assert "an adapter that runs holds it" in said.stdout
        assert made.ask("get")["values"]["max_running"] == 2


def test_a_reload_ends_the_lease_and_begins_anew(gate: Gate, tmp_path: Path) -> None:
    with adapter(gate, tmp_path) as made:
        made.set(max_running=2)
        made.becomes(max_running=2)
        before = made.ask("hello")["instance"]
        gate.reload()
        until(lambda: made.serves() and made.ask("hello")["instance"] != before, "another instance")
        state = made.ask("get")
        assert (state["owner"], state["epoch"], state["values"]["max_running"]) == (None, 0, 6)
        assert gate.maxconn == MAXCONN
        assert not made.undo.exists()


def test_an_operator_s_change_is_left_alone_and_the_rest_given_back(
    gate: Gate, tmp_path: Path
) -> None:
    with adapter(gate, tmp_path) as made:
        made.set(max_running=2, max_queued=5)
        made.becomes(max_running=2)
        gate.ask("set maxconn server engines/a 3")
        until(lambda: made.ask("get")["owner"] != "test", "the yield")
        assert "max_running is 4, not 2" in made.ask("get")["owner"]
        with pytest.raises(EngineError) as caught:
            made.set(max_running=3)
        assert caught.value.code == "held"
        rest = {"max_running": 4, "max_queued": 1000}
        until(lambda: made.ask("get")["values"] == rest, "the rest")
    assert (gate.maxconn["a"], gate.max_queued) == (3, 1000)


def test_a_haproxy_that_is_killed_or_loses_its_socket_is_waited_for(
    gate: Gate, tmp_path: Path
) -> None:
    with adapter(gate, tmp_path, supervised=True) as made:
        made.set(max_running=2)
        made.becomes(max_running=2)
        away = gate.admin.with_suffix(".away")
        gate.admin.rename(away)
        until(lambda: not made.socket.exists(), "the end of serving")
        away.rename(gate.admin)
        until(made.serves, "the adapter")
        assert gate.maxconn == MAXCONN, "what was left was not undone"
        assert made.process.stdout is not None
        states = [json.loads(made.process.stdout.readline()) for _ in range(3)]
        assert [each["state"] for each in states] == ["serving", "unreachable", "serving"]
        assert "could not talk to HAProxy" in states[1]["detail"]
        made.set(max_running=2)
        made.becomes(max_running=2)
        os.kill(gate.worker, signal.SIGKILL)
        until(lambda: not made.socket.exists(), "the end of serving")
