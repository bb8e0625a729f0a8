"""The package on a bare machine: installed, run, scraped, reloaded, killed, upgraded, purged.

The tests go in their order, each from where the one before it ended. What an operator types is
taken from docs/operating.md.
"""

import http.client
import os
import re
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from agent.client import ClientError
from tests.vm.guest import documented
from tests.vm.guest.conftest import MakeCgroup, cgroups, on_console, wait_until
from tests.vm.guest.installed import (
    DEBS,
    PATIENCE_S,
    POLICY,
    UNIT_CGROUP,
    answers,
    client,
    install,
    main_pid,
    patient_unit,
    pins,
    properties,
    run,
    scrape,
    systemctl,
    traces,
    typed,
    wait_for_agent,
)
from tests.vm.guest.leftovers import Left, kernel_kib, left, memory_kib, wait_for_no_more
from tests.vm.guest.test_bpf import Server, serving

EXPOSURE_MAX = 2.5
TEXT = """
[engines.chat]
cgroup = "/tests/engine"
slo = {{ gap_ms = {gap_ms} }}
"""
KEPT = "the operator's own line"
ROUNDS_PAUSE_S = 0.2
SETTLES_S = 5
"""systemd's own programs on the service's cgroup go a moment after it."""


@pytest.fixture(scope="module", autouse=True)
def bare() -> Iterator[None]:
    """A machine without the package, before and after."""
    assert traces() == set()
    with patient_unit():
        yield
        run("dpkg", "--purge", "sits")


def metric(name: str) -> float:
    """The engine's value of a metric, 0 without one."""
    found = re.search(rf'^{name}\{{engine="chat"[^}}]*\}} (\S+)$', scrape(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def gap_ms() -> float | None:
    """What the policy in force says, None while nobody answers."""
    try:
        return float(client().policy()["engines"]["chat"]["slo"]["gap_ms"])
    except ClientError:
        return None


def capabilities(pid: int) -> set[str]:
    """Names of the capabilities that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = re.search(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    assert mask
    bits = {1: "dac_override", 12: "net_admin", 19: "sys_ptrace", 38: "perfmon", 39: "bpf"}
    value = int(mask[1], 16)
    return {bits.get(bit, str(bit)) for bit in range(64) if value >> bit & 1}


def controller_pid() -> int:
    """The controller's process."""
    return int(client().status()["controller"]["pid"])


def test_one_command_installs_and_starts_nothing(tmp_path: Path) -> None:
    shutil.copy(DEBS / "sits.deb", tmp_path / f"sits_{version('sits')}_amd64.deb")
    typed(documented.lines("Install")[0], at=tmp_path)
    assert properties("LoadState", "UnitFileState", "ActiveState") == {
        "LoadState": "loaded",
        "UnitFileState": "disabled",
        "ActiveState": "inactive",
    }


def test_a_second_command_has_it_run_and_observe() -> None:
    typed(documented.lines("Install")[1])
    wait_for_agent()
    assert client().status()["mode"] == "observe"
    assert properties("NRestarts", "StatusErrno")["NRestarts"] == "0"


def test_it_is_scraped_and_its_commands_answer() -> None:
    # how a machine stands may be a problem, which is an exit code of 1 and no fault of a command's
    asked = [run("sh", "-c", line) for line in documented.sentence("/metrics` say how it stands")]
    status, doctor, scraped = asked
    assert "mode observe" in status.stdout, status.stdout + status.stderr
    assert status.returncode == ("no problems" not in status.stdout), status.stdout
    assert "may load BPF programs" in doctor.stdout, doctor.stdout + doctor.stderr
    assert 'sits_mode{mode="observe"} 1.0' in scraped.stdout, scraped.stdout + scraped.stderr


def test_its_socket_is_roots_and_the_groups() -> None:
    socket = Path("/run/sits/admin.sock")
    assert (socket.owner(), socket.group()) == ("root", "sits")
    assert stat.S_IMODE(socket.stat().st_mode) == 0o660


def test_systemd_finds_it_little_exposed() -> None:
    said = run("systemd-analyze", "security", "--no-pager", "sitsd").stdout
    found = re.search(r"Overall exposure level for sitsd.service: ([\d.]+)", said)
    assert found, said
    assert float(found[1]) <= EXPOSURE_MAX


def test_it_has_what_it_needs_and_its_controller_less() -> None:
    needed = {"bpf", "perfmon", "net_admin", "sys_ptrace", "dac_override"}
    assert capabilities(main_pid()) == needed
    assert capabilities(controller_pid()) == {"dac_override"}


def test_a_second_agent_refuses_and_says_who_runs(heavy: None) -> None:
    second = run("/opt/sits/bin/sitsd")
    assert second.returncode != 0
    assert f"another sitsd runs already (process {main_pid()}" in second.stderr
    assert answers(client())


def test_a_reload_puts_the_new_policy_in_force_in_the_same_process(heavy: None) -> None:
    before = main_pid()
    POLICY.write_text(TEXT.format(gap_ms=70) + f"# {KEPT}\n")
    systemctl("reload", "sitsd")
    assert gap_ms() == 70
    assert main_pid() == before


def test_a_policy_that_does_not_hold_fails_the_reload_and_the_old_one_stays(heavy: None) -> None:
    before, good = main_pid(), POLICY.read_text()
    POLICY.write_text(TEXT.format(gap_ms=-1))
    try:
        assert run("systemctl", "reload", "sitsd").returncode != 0
        assert gap_ms() == 70
        assert main_pid() == before
    finally:
        POLICY.write_text(good)


def test_a_controller_that_hangs_is_found_by_the_watchdog_and_all_is_started_again(
    heavy: None,
) -> None:
    before, restarts = main_pid(), int(properties("NRestarts")["NRestarts"])
    os.kill(controller_pid(), signal.SIGSTOP)
    wait_until(lambda: main_pid() not in {0, before}, "another sitsd", PATIENCE_S)
    wait_for_agent()
    assert int(properties("NRestarts")["NRestarts"]) == restarts + 1


def test_killed_it_is_started_again(heavy: None) -> None:
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: main_pid() not in {0, before}, "another sitsd", PATIENCE_S)
    wait_for_agent()


@pytest.fixture
def make_groups() -> Iterator[MakeCgroup]:
    with cgroups("+cpu") as make:
        yield make


@pytest.fixture
def prepared() -> None:
    """The package installed and an engine in its policy, also when this test runs alone."""
    if not Path("/opt/sits").exists():
        install("sits")
    POLICY.write_text(TEXT.format(gap_ms=70) + f"# {KEPT}\n")
    systemctl("start", "sitsd")
    wait_for_agent()


class Load:
    """One stream after another on one connection each, until it is told to end.

    `pause_s` lies between them. An emulated machine can do little else while there is nearly none.
    """

    def __init__(self, server: Server, pause_s: float = 0.02) -> None:
        self.done = 0
        self.short = 0
        self._server = server
        self._pause_s = pause_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(self._pause_s):
            address = ("127.0.0.1", self._server.port)
            with closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
                connection.request("POST", "/3", body=b"{}")
                self.short += connection.getresponse().read().count(b"data:") != 3
                self.done += 1

    def end(self) -> None:
        """Ask for nothing more; returns when the last stream ended."""
        self._ends.set()
        self._thread.join(PATIENCE_S)


def test_upgrade_and_downgrade_under_load(
    heavy: None, streaming: None, prepared: None, make_groups: MakeCgroup
) -> None:
    with serving(make_groups("engine")) as server:
        wait_until(
            lambda: server.stream(1) == [1] and metric("sits_requests_total") > 0,
            "the engine followed",
            PATIENCE_S,
        )
        before = metric("sits_requests_total")
        load = Load(server)
        wait_until(lambda: load.done > 3, "the first streams")

        # the same programs: adopted, so nothing that came meanwhile is missing
        install("newer")
        wait_for_agent()
        assert client().status()["kernel"]["loaded"] == "adopted"
        load.end()
        wait_until(
            lambda: metric("sits_requests_total") == before + load.done,
            "every request counted, and none twice",
        )
        assert load.short == 0
        adopted = pins()

        # another layout: begun anew, of the old pins none is left, and it counts
        load = Load(server)
        install("relaid")
        wait_for_agent()
        assert client().status()["kernel"]["loaded"] == "fresh"
        wait_until(lambda: metric("sits_requests_total") > 0, "streams after the new layout")

        # and back
        install("sits")
        wait_for_agent()
        assert client().status()["kernel"]["loaded"] == "fresh"
        wait_until(lambda: metric("sits_requests_total") > 0, "streams after the old layout")
        load.end()
        assert load.short == 0
        assert pins() == adopted
        assert properties("NRestarts")["NRestarts"] == "0"
        assert run("dpkg-query", "-W", "-f", "${Version}", "sits").stdout == version("sits")
    assert KEPT in POLICY.read_text()


def test_rounds_of_starts_kills_and_stops_leave_nothing(
    heavy: None,
    streaming: None,
    prepared: None,
    make_groups: MakeCgroup,
    pytestconfig: pytest.Config,
) -> None:
    memory: list[int] = []
    kernel: list[int] = []
    after: Left = {}
    rounds = pytestconfig.getoption("rounds")
    with serving(make_groups("engine")) as server:
        load = Load(server, ROUNDS_PAUSE_S)
        inode = server.cgroup.stat().st_ino
        followed = {f"links/stream_{way}@{inode}" for way in ("in", "out")}
        for number in range(rounds):
            began = time.monotonic()
            systemctl("start", "sitsd")
            wait_for_agent()
            # those of the engine before it go when the agent first looks
            wait_until(
                lambda: {pin for pin in pins() if "@" in pin} == followed,
                "this engine's streams followed",
                PATIENCE_S,
            )
            memory.append(memory_kib(main_pid()) + memory_kib(controller_pid()))
            runs = time.monotonic()
            if number % 2:
                systemctl("kill", "--signal=KILL", "sitsd")
            systemctl("stop", "sitsd")
            assert not UNIT_CGROUP.exists()
            assert not Path("/run/sits").exists()
            if not after:
                time.sleep(SETTLES_S)
                after = left()
            after = wait_for_no_more(after)
            kernel.append(kernel_kib())
            told = f"{runs - began:.0f} s to run, {time.monotonic() - runs:.0f} s to leave"
            on_console(f"round {number + 1} of {rounds}: {told}, {memory[-1]}, {kernel[-1]} KiB")
        load.end()
    assert load.done >= rounds
    assert load.short == 0
    assert not after["sockets"]
    # a process that is new each time grows only by what the ones before it left for it
    assert memory[-1] < 1.2 * memory[0]
    assert kernel[-1] < 1.2 * kernel[0]
    print(
        f"{rounds} rounds and {load.done} streams; memory of agent and controller in the first"
        f" {memory[0]} KiB and in the last {memory[-1]} KiB, of the kernel after the first"
        f" {kernel[0]} KiB and after the last {kernel[-1]} KiB"
    )


def test_stopped_it_leaves_no_process_and_is_no_failure() -> None:
    systemctl("start", "sitsd")
    wait_for_agent()
    systemctl("stop", "sitsd")
    assert properties("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert not UNIT_CGROUP.exists()


def test_removed_it_leaves_what_is_configured_and_purged_nothing() -> None:
    POLICY.write_text(TEXT.format(gap_ms=70) + f"# {KEPT}\n")
    typed(documented.row("remove, keep policy and journal")[0])
    assert traces() == {"/etc/sits", "/var/lib/sits"}
    assert KEPT in POLICY.read_text()
    typed(documented.row("remove everything")[0])
    assert traces() == set()
