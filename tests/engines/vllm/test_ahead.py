"""The plug-in in vLLM's asynchronous scheduler, in a server: steps are planned one ahead."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from controller.conformance.suite import run
from demo.rig import Rig
from demo.stage import Place, Stage
from tests.engines.test_conformance import failing, left_out
from tests.engines.vllm import launch
from tests.engines.vllm.conftest import OPTIONS
from tests.engines.vllm.held import Watch, holding, until
from tests.engines.vllm.inside_run import INSIDE
from tests.engines.vllm.requests import Crowd

pytestmark = pytest.mark.engines

TOKENS = 60
ENTRY_POINTS = "[vllm.general_plugins]\nsits_test_ahead = ahead:register\n"


@dataclass(frozen=True, slots=True)
class Ahead:
    stage: Stage
    seen: Path
    """Which scheduler planned ahead."""


def plugged_in(directory: Path) -> Path:
    """A directory for PYTHONPATH in which vLLM finds the plug-in of `inside/ahead.py`."""
    (directory / "ahead.py").write_text((INSIDE / "ahead.py").read_text())
    information = directory / "ahead-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ahead\nVersion: 0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    return directory


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    if os.geteuid() != 0:
        pytest.skip("the rig makes cgroups, which needs root")
    directory, seen = plugged_in(tmp_path_factory.mktemp("ahead")), tmp_path_factory.mktemp("seen")
    kind = launch.kind("--async-scheduling")

    def command(place: Place, options: Sequence[str]) -> Sequence[str]:
        env, *rest = kind.command(place, options)
        rest = [f"{each}:{directory}" if each.startswith("PYTHONPATH=") else each for each in rest]
        return [env, f"SITS_TEST_AHEAD={seen / 'class'}", *rest]

    with Rig("sits-vllm-ahead") as rig:
        made = Stage(rig, OPTIONS, replace(kind, command=command))
        made.start_engine()
        yield Ahead(made, seen / "class")


def test_a_server_that_plans_ahead_takes_the_knobs_and_accounts_for_every_token(
    ahead: Ahead,
) -> None:
    stage, watch = ahead.stage, Watch(ahead.stage.page)
    before = watch.now()
    with Crowd(stage.port) as crowd:
        futures = crowd.send_many(12, 40, TOKENS)
        with holding(stage.admin_socket, max_running=3, max_batched_tokens=128):
            until(lambda: watch.now().running <= 3, "no more than three")
            assert watch.now().max_running == 3
        answers = [future.result() for future in futures]
    assert ahead.seen.read_text() == "SitsScheduler AsyncScheduler"
    assert {(each.status, len(each.tokens), each.finish) for each in answers} == {
        (200, TOKENS, "length")
    }
    until(lambda: watch.now().running == 0, "the end of all")
    now = watch.now()
    assert now.finished_total - before.finished_total == 12
    assert now.prompt_tokens_total - before.prompt_tokens_total == 12 * 40
    assert now.generated_tokens_total - before.generated_tokens_total >= 12 * TOKENS
    assert (now.waiting, now.waiting_tokens, now.kv_used) == (0, 0, 0)


def test_it_keeps_the_contract(ahead: Ahead) -> None:
    report = run(ahead.stage.admin_socket, patience=5)
    assert failing(report) == {}
    assert left_out(report) <= {"restart", "punctual-end", "unread", "crowd"}
