"""Whose processes make a cgroup protected, told by real ones in real cgroups."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller.limits.cgroup import cpu_group, read_hierarchies
from controller.protection import Protection
from tests.kernel.conftest import MakeGroup, TwinGroup

pytestmark = pytest.mark.kernel

NAMED = """
import os, sys, time
name, uid = sys.argv[1], int(sys.argv[2])
open("/proc/self/comm", "w").write(name)
if uid:
    os.setuid(uid)
print("r", flush=True)
time.sleep(60)
"""


@contextmanager
def called(group: TwinGroup, name: str, uid: int = 0, *before: str) -> Iterator[None]:
    """A process of this name in the group."""
    command = [*before, sys.executable, "-c", NAMED, name, str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"r\n"
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in (process.pid, *map(int, children)):
            group.take_in(pid)
        try:
            yield
        finally:
            for child in children:
                subprocess.run(["kill", "-9", child], check=False)
            process.kill()


def why(group: TwinGroup) -> str | None:
    hierarchies = read_hierarchies()
    return Protection(hierarchies).why(cpu_group(hierarchies, f"/{group.cpu.name}"))


@pytest.mark.parametrize("name", ["sshd", "containerd", "systemd-logind"])
def test_a_cgroup_with_a_vital_process_of_roots_is_protected(
    make_cgroup: MakeGroup, name: str
) -> None:
    group = make_cgroup("protected")
    assert why(group) is None
    with called(group, name):
        found = why(group)
        assert found is not None
        assert found.startswith(f"{name} (process ")


def test_what_a_user_calls_his_process_spares_nothing(make_cgroup: MakeGroup) -> None:
    group = make_cgroup("protected")
    with called(group, "sshd", uid=65534):
        assert why(group) is None


def test_what_a_container_calls_its_process_spares_nothing(make_cgroup: MakeGroup) -> None:
    group = make_cgroup("protected")
    with called(group, "sshd", 0, "unshare", "--pid", "--fork", "--mount-proc"):
        assert why(group) is None


def test_the_cgroup_of_the_agent_is_protected(make_cgroup: MakeGroup) -> None:
    group = make_cgroup("protected")
    hierarchies = read_hierarchies()
    with subprocess.Popen(["sleep", "60"]) as agent:
        group.take_in(agent.pid)
        protection = Protection(hierarchies, [agent.pid])
        found = protection.why(cpu_group(hierarchies, f"/{group.cpu.name}"))
        agent.kill()
    assert found == "the agent or PID 1 runs in it"
