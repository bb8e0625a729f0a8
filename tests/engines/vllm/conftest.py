"""One vLLM server for all tests here: it takes half a minute to start."""

import os
from collections.abc import Iterator

import pytest

from demo.rig import Rig
from demo.stage import Stage
from tests.engines.vllm import launch

OPTIONS = ("--max-num-seqs=32", "--max-num-batched-tokens=1024")


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    if os.geteuid() != 0:
        pytest.skip("the rig makes cgroups, which needs root")
    with Rig("sits-vllm-tests") as rig:
        made = Stage(rig, OPTIONS, launch.kind())
        made.start_engine()
        yield made
