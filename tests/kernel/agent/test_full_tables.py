"""Targets that are more than the kernel's tables have room for."""

from contextlib import closing
from pathlib import Path

import pytest

from agent.discovery import Found, Surroundings
from agent.node import Node
from bpf.features import Features
from controller.policy_model import Agent, Policy

pytestmark = pytest.mark.kernel

ROOM = 16_384
"""Of the table of processes, see bpf/sched.bpf.c."""


def found(count: int) -> Surroundings:
    pids = frozenset(range(1 << 20, (1 << 20) + count))
    return Surroundings(neighbours=(Found("many", pids=pids, processes=pids),))


def test_what_finds_no_room_is_told_and_the_rest_is_watched(
    features: Features, tmp_path: Path
) -> None:
    node = Node(Policy(agent=Agent(pin_dir=tmp_path)))
    node.load(lambda event: None)
    with closing(node):
        assert node.programs is not None
        assert node.watch(found(ROOM)) == []
        (problem,) = node.watch(found(ROOM + 1))
        assert "not all" in problem
        assert len(node.programs.map("processes").keys()) == ROOM
        assert node.watch(found(3)) == []
        assert len(node.programs.map("processes").keys()) == 3
