"""What sitsd logs under systemd: journald's own fields, asked for by journalctl."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.client import AgentClient, RefusedError
from tests.vm.guest.conftest import wait_until
from tests.vm.guest.installed import answers

UNIT = f"journald-sitsd-{os.getpid()}"
"""Another one when the tests run again: the journal keeps what the first one said."""
DIRECTORY = Path("/run/journald-sits")
PATIENCE_S = 400
POLICY = """
[agent]
admin_socket = "{at}/admin.sock"
run_dir = "{at}"
state_dir = "{at}"
metrics_address = "127.0.0.1:0"
pin_dir = "{at}/no-pins"
log_level = "{level}"
[engines.chat]
port = 8000
slo = {{ gap_ms = {gap_ms} }}
"""


def entries(*fields: str) -> list[dict[str, Any]]:
    """What journalctl finds of all that the agent logged until now, oldest first."""
    return found("-u", UNIT, *fields)


def found(*asked: str) -> list[dict[str, Any]]:
    """What journalctl finds of all that was logged until now, oldest first."""
    subprocess.run(["journalctl", "--sync"], check=True, timeout=PATIENCE_S)
    done = subprocess.run(
        ["journalctl", "-o", "json", "--no-pager", *asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def write(level: str = "info", gap_ms: int = 100) -> None:
    text = POLICY.format(at=DIRECTORY, level=level, gap_ms=gap_ms)
    (DIRECTORY / "policy.toml").write_text(text)


@pytest.fixture(scope="module")
def agent(heavy: None) -> Iterator[AgentClient]:
    DIRECTORY.mkdir(exist_ok=True)
    write()
    paths = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    settings = [f"--setenv={name}={os.environ[name]}" for name in paths if name in os.environ]
    command = ["python3", "-m", "agent.sitsd", "--policy", str(DIRECTORY / "policy.toml")]
    subprocess.run(
        ["systemd-run", f"--unit={UNIT}", "--collect", *settings, *command], check=True, timeout=60
    )
    client = AgentClient(DIRECTORY / "admin.sock", PATIENCE_S)
    try:
        wait_until(lambda: answers(client), "its controller", PATIENCE_S)
        yield client
    finally:
        subprocess.run(["systemctl", "stop", UNIT], check=False, timeout=PATIENCE_S)
        shutil.rmtree(DIRECTORY)


def test_events_are_found_by_their_fields(agent: AgentClient) -> None:
    wait_until(lambda: bool(entries("SITS_EVENT=start")), "the start in the journal", PATIENCE_S)
    (entry,) = entries("SITS_EVENT=start")
    assert entry["SITS_SUBJECT"] == "sitsd"
    assert (entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]) == ("6", "sitsd")
    assert entry["LOGGER"] == "sits.events"
    assert entry["_SYSTEMD_UNIT"] == f"{UNIT}.service"


def test_a_change_is_found_by_who_asked_for_it_and_quotes_nothing_raw(agent: AgentClient) -> None:
    agent.set_mode("shadow", "a\nSITS_PEER_UID=4\x1b[31m")
    wait_until(lambda: bool(entries("SITS_CALL=/v1/mode")), "the change in the journal", PATIENCE_S)
    (entry,) = entries("SITS_CALL=/v1/mode")
    assert (entry["SITS_PEER_UID"], entry["SITS_PEER_PID"]) == ("0", str(os.getpid()))
    assert entries("SITS_PEER_UID=4") == []
    assert all(isinstance(each["MESSAGE"], str) for each in entries())


def test_a_refusal_is_a_warning(agent: AgentClient) -> None:
    (DIRECTORY / "admin.sock").chmod(0o666)
    DIRECTORY.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            agent.set_mode("control", "x")
        except RefusedError as error:
            os._exit(0 if error.status == 403 else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    wait_until(lambda: bool(entries("SITS_PEER_UID=65534")), "the refusal", PATIENCE_S)
    (entry,) = entries("SITS_PEER_UID=65534")
    assert entry["PRIORITY"] == "4"
    assert agent.status()["mode"] != "control"


def test_the_level_of_the_policy_decides_what_is_told_from_then_on(agent: AgentClient) -> None:
    write("error", gap_ms=101)
    agent.policy_reload()
    before = len(entries("PRIORITY=6"))
    write("error", gap_ms=102)
    agent.policy_reload()
    assert len(entries("PRIORITY=6")) == before
    write("info", gap_ms=103)
    agent.policy_reload()
    wait_until(lambda: len(entries("PRIORITY=6")) > before, "another line", PATIENCE_S)


def test_a_datagram_of_ours_is_what_journald_takes() -> None:
    """Line ends too: by their length, so that they begin no field."""
    from controller.log_output import JOURNAL_SOCKET, datagram

    ours = f"SITS_PROOF={os.getpid()}"
    name, value = ours.split("=")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        packet = datagram(
            {"MESSAGE": "two\nlines", "PRIORITY": "5", "SITS_X": "a\nSITS_FORGED=1\n", name: value}
        )
        sock.sendto(packet, str(JOURNAL_SOCKET))

    wait_until(lambda: bool(found(ours)), "the datagram in the journal", PATIENCE_S)
    (only,) = found(ours)
    assert only["SITS_X"] == "a\nSITS_FORGED=1\n"
    assert only["MESSAGE"] == "two\nlines"
    assert found("SITS_FORGED=1") == []
