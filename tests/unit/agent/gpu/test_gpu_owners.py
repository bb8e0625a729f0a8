import os
from pathlib import Path

from agent.discovery import Found, Surroundings
from agent.gpu_owners import Owners


def test_a_process_of_a_target_is_the_targets() -> None:
    owners = Owners()
    pid = os.getpid()
    owners.set_surroundings(
        Surroundings((Found("chat", frozenset({pid})),), (Found("batch", frozenset({1})),))
    )
    assert (owners.owner(pid).target, owners.owner(pid).kind) == ("chat", "engine")
    assert (owners.owner(1).target, owners.owner(1).kind) == ("batch", "neighbour")
    assert owners.owner(pid).command == Path("/proc/self/comm").read_text().strip()


def test_a_process_of_nobody_is_its_command_and_cgroup() -> None:
    owner = Owners().owner(os.getpid())
    assert owner.target is None
    assert owner.command


def test_a_process_that_is_gone_is_nobodys() -> None:
    owner = Owners().owner(4_000_000)
    assert (owner.target, owner.command, owner.cgroup) == (None, "", "")
