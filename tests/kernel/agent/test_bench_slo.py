"""The SLO bench from end to end, as short as it gets."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bpf.features import Features
from demo.rig import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

CONTENDERS = ("default", "best_static", "best_static_relegation", "aimd", "sits")


@pytest.fixture(scope="module")
def steady(features: Features, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    where = tmp_path_factory.mktemp("slo")
    command = [sys.executable, "-m", "tests.bench.slo", "--quick", "--only=steady", "--seconds=2"]
    command += [f"--kept={where / 'kept'}", f"--out={where / 'slo.json'}"]
    for _ in range(2):  # the second time nothing is left to run
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "seed 1" not in done.stdout
    result: dict[str, Any] = json.loads(Path(where / "slo.json").read_text())
    return result


def test_every_contender_is_told_of(steady: dict[str, Any]) -> None:
    assert set(steady) == {"setup", "steady", "loop"}
    for contender in CONTENDERS:
        entry = steady["steady"][contender]
        assert entry["requests"] > 0
        assert entry["failed"] == entry["refused"] == 0
        assert 0 <= entry["attainment"] <= 1


def test_sits_is_told_of_with_its_loop(steady: dict[str, Any]) -> None:
    assert steady["steady"]["sits"]["loop"]["ticks"] > 0
    assert steady["steady"]["goodput_ratio_vs_best_static"] is not None


def test_the_setup_says_what_was_run(steady: dict[str, Any]) -> None:
    setup = steady["setup"]
    assert setup["engine"] == "reference"
    assert setup["extent"]["seeds"] == [1]
    assert steady["steady"]["slo"]["ttft_ms"] > steady["steady"]["slo"]["gap_ms"] > 0
