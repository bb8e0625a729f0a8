"""A limit on an MPS daemon's clients by a whole sitsd: shown, and given back however that ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.controller.mps.daemon import Daemon, install

from .conftest import Node
from .rig import Site, Sitsd, gone
from .waiting import becomes

pytestmark = pytest.mark.kernel


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    (tmp_path / "bin").mkdir()
    install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    made = Daemon(tmp_path / "mps-batch")
    made.set(servers={"4242": 100.0})
    return made


def table(daemon: Daemon) -> str:
    return f'[mps.batch]\npipe_directory = "{daemon.directory}"\nactive_thread_percent = 30\n'


def states(sitsd: Sitsd) -> list[str]:
    return [each["state"] for each in sitsd.api.gpu()["mps"]]


def limited(sitsd: Sitsd, daemon: Daemon) -> None:
    becomes(lambda: states(sitsd) == ["ok"])
    assert (daemon.default, daemon.servers) == (30, {"4242": 30})


def given_back(daemon: Daemon) -> bool:
    return (daemon.default, daemon.servers) == (100, {"4242": 100})


def killed(sitsd: Sitsd, *, guard: bool) -> None:
    """Agent and controller at once, and the guard with them or not."""
    family = sitsd.family()
    spared = sitsd.guard()
    sitsd.process.kill()
    for each in family:
        if guard or each != spared:
            each.kill()
    sitsd.process.wait()
    becomes(lambda: gone([each for each in family if guard or each != spared]))


def test_killed_with_its_controller_the_guard_gives_it_back(
    node: Node, site: Site, daemon: Daemon
) -> None:
    site.write(node.targets() + table(daemon), "control")
    with site.sitsd() as sitsd:
        limited(sitsd, daemon)
        guard = sitsd.guard()
        assert guard is not None
        killed(sitsd, guard=False)
        becomes(lambda: given_back(daemon))
        becomes(lambda: gone([guard]))


def test_killed_with_its_guard_the_next_start_and_the_unit_s_undo_give_it_back(
    node: Node, site: Site, daemon: Daemon
) -> None:
    site.write(node.targets() + table(daemon), "control")
    with site.sitsd() as sitsd:
        limited(sitsd, daemon)
        killed(sitsd, guard=True)
    assert daemon.default == 30
    site.write(node.targets() + table(daemon))
    with site.sitsd() as sitsd:
        becomes(lambda: given_back(daemon))
        sitsd.api.set_mode("control", "a test")
        limited(sitsd, daemon)
        killed(sitsd, guard=True)
    assert daemon.default == 30
    assert "default 30 → 100" in site.run("--undo").stdout
    assert given_back(daemon)


def test_it_is_shown_follows_the_mode_and_a_program_that_hangs_does_not_hold_up_the_end(
    node: Node, site: Site, daemon: Daemon
) -> None:
    site.write(node.targets() + table(daemon), "shadow")
    with site.sitsd() as sitsd:
        becomes(lambda: states(sitsd) == ["shadow"])
        assert daemon.asked == []
        sitsd.api.set_mode("control", "a test")
        limited(sitsd, daemon)
        assert sitsd.metric("sits_mps_limit_percent", daemon="batch") == 30
        assert sitsd.metric("sits_mps_state", daemon="batch", state="ok") == 1
        findings = {each["name"]: each["ok"] for each in sitsd.api.doctor()["findings"]}
        assert findings["mps batch"]
        assert becomes(lambda: sitsd.events("mps_limited"))[0]["subject"] == "batch"
        sitsd.api.set_mode("observe", "a test")
        becomes(lambda: states(sitsd) == ["off"])
        assert given_back(daemon)

        sitsd.api.set_mode("control", "a test")
        limited(sitsd, daemon)
        daemon.set(hangs=["get_default_active_thread_percentage"])
        assert sitsd.end() == 0
    daemon.set(hangs=[])
    site.run("--undo")
    assert given_back(daemon)


def test_an_engine_that_becomes_a_client_ends_it(node: Node, site: Site, daemon: Daemon) -> None:
    word = f"engine-of-{daemon.directory.parent.name}"
    targets = node.targets() + f'[engines.other]\ncommand = "{word}"\n' + table(daemon)
    site.write(targets, "control")
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(daemon.directory)}
    with site.sitsd() as sitsd:
        becomes(lambda: states(sitsd) == ["waiting"])
        with subprocess.Popen(
            (sys.executable, "-S", "-c", "input()", word), env=environment, stdin=subprocess.PIPE
        ) as engine:
            becomes(lambda: states(sitsd) == ["engine is a client"])
            engine.kill()
        sitsd.status(
            lambda status: any("engine other is a client" in each for each in status["problems"])
        )
    assert given_back(daemon)
    assert not any(command.startswith("set_") for command in daemon.asked)
