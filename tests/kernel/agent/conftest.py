"""An engine and its neighbours for each module; a place for sitsd for each test."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from bpf.features import Features
from tests.engines.reference_process import Running
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import favoured
from .rig import Site
from .traffic import LONG_PROMPT, engine_in, load, steps

NEIGHBOURS = 6


@dataclass(frozen=True, slots=True)
class Node:
    """An engine in a cgroup, and cgroups of the same weight beside it."""

    engine: Running
    group: TwinGroup
    neighbours: tuple[TwinGroup, ...]

    def targets(self, ttft_ms: float = 60_000, gap_ms: float = 30_000, more: str = "") -> str:
        """The policy's tables for them; the SLO is one that is always met unless given."""
        text = f"""
[engines.chat]
cgroup = "/{self.group.cpu.name}"
admin_socket = "{self.engine.admin}"
slo = {{ ttft_ms = {ttft_ms}, gap_ms = {gap_ms} }}
{more}
"""
        for number, each in enumerate(self.neighbours):
            text += f'[neighbours.n{number}]\ncgroup = "/{each.cpu.name}"\n'
        return text


@pytest.fixture(scope="module")
def node(make_cgroup: MakeGroup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    group = make_cgroup("engine")
    neighbours = tuple(make_cgroup(f"n{number}") for number in range(NEIGHBOURS))
    with engine_in(group, tmp_path_factory.mktemp("engine")) as engine:
        yield Node(engine, group, neighbours)


@pytest.fixture(scope="module")
def gap_ms(node: Node) -> float:
    """A gap SLO that decode steps meet and steps with a long prompt in them don't."""
    with favoured(node.group):
        with load(node.engine, clients=1, max_tokens=32) as traffic:
            traffic.grows_to(1)
        decode = steps(node.engine, lambda step: not step.prefill_tokens)
        with load(node.engine, clients=1, max_tokens=1, prompt=LONG_PROMPT) as traffic:
            traffic.grows_to(1)
        prefill = steps(node.engine, lambda step: step.prefill_tokens > 1_000)
    assert max(prefill) > 4 * statistics.median(decode)
    return float(statistics.geometric_mean([statistics.median(decode), max(prefill)])) / 1e6


@pytest.fixture
def site(bpffs: Path, features: Features, tmp_path: Path) -> Iterator[Site]:
    """A place of one test's own."""
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    made = Site(tmp_path, bpffs / f"sits-{uuid4().hex[:12]}")
    yield made
    made.unload()
