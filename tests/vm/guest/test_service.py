"""The unit as it is installed, under the machine's own systemd."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.client import AgentClient, ClientError
from tests.vm.guest.conftest import wait_until

SHIPPED = Path(__file__).parents[3] / "systemd/sitsd.service"
UNIT = Path("/run/systemd/system/sitsd.service")
POLICY = Path("/etc/sits/policy.toml")
PATIENCE_S = 120
COMMANDS = {"sitsd": "agent.daemon", "sitsctl": "agent.sitsctl"}
TEXT = """
[engines.chat]
port = 8000
slo = {{ gap_ms = {gap_ms} }}
"""


def systemctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemctl", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def main_pid() -> int:
    return int(systemctl("show", "--property=MainPID", "--value", "sitsd").stdout)


def gap_ms(agent: AgentClient) -> float | None:
    """What the policy in force says, None while nobody answers."""
    try:
        return float(agent.policy()["engines"]["chat"]["slo"]["gap_ms"])
    except ClientError:
        return None


@pytest.fixture(scope="module")
def service() -> Iterator[AgentClient]:
    """sitsd, installed and started."""
    commands = Path("/opt/sits/bin")
    commands.mkdir(parents=True)
    for name, module in COMMANDS.items():
        command = commands / name
        command.write_text(
            f"#!/bin/sh\nexport PYTHONPATH={os.environ['PYTHONPATH']} PYTHONDONTWRITEBYTECODE=1\n"
            f'exec python3 -m {module} "$@"\n'
        )
        command.chmod(0o755)
    UNIT.parent.mkdir(parents=True, exist_ok=True)
    # an emulated machine takes longer than any that the unit's own bound is for
    unit = re.sub(r"TimeoutStopSec=\d+", f"TimeoutStopSec={PATIENCE_S}", SHIPPED.read_text())
    UNIT.write_text(unit)
    POLICY.parent.mkdir(parents=True)
    POLICY.write_text(TEXT.format(gap_ms=100))
    systemctl("daemon-reload")
    started = systemctl("start", "sitsd")
    assert started.returncode == 0, started.stderr + systemctl("status", "sitsd").stdout
    agent = AgentClient(Path("/run/sits/admin.sock"), PATIENCE_S)
    wait_until(lambda: agent.status()["controller"]["alive"], "its controller", PATIENCE_S)
    yield agent
    systemctl("stop", "sitsd")


def test_a_reload_puts_the_new_policy_in_force_in_the_same_process(service: AgentClient) -> None:
    before = main_pid()
    POLICY.write_text(TEXT.format(gap_ms=70))
    done = systemctl("reload", "sitsd")
    assert done.returncode == 0, done.stderr
    assert gap_ms(service) == 70
    assert main_pid() == before


def test_a_policy_that_does_not_hold_fails_the_reload_and_the_old_one_stays(
    service: AgentClient,
) -> None:
    before, held = main_pid(), gap_ms(service)
    POLICY.write_text(TEXT.format(gap_ms=-1))
    try:
        assert systemctl("reload", "sitsd").returncode != 0
        assert gap_ms(service) == held
        assert main_pid() == before
    finally:
        POLICY.write_text(TEXT.format(gap_ms=70))


def test_killed_it_is_started_again(service: AgentClient) -> None:
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: main_pid() not in {0, before}, "another sitsd", PATIENCE_S)
    wait_until(lambda: gap_ms(service) is not None, "its answer", PATIENCE_S)


def test_stopped_it_leaves_no_process_and_is_no_failure(service: AgentClient) -> None:
    assert systemctl("stop", "sitsd").returncode == 0
    state = systemctl("show", "--property=ActiveState,Result", "--value", "sitsd").stdout.split()
    assert sorted(state) == ["inactive", "success"]
    assert not Path("/sys/fs/cgroup/system.slice/sitsd.service").exists()
