"""The first command of the README, as short as it can be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bpf.features import Features
from tests.documented import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

LONGEST_S = 240


def test_the_shortest_demo_runs_and_leaves_nothing_behind(
    features: Features, tmp_path: Path
) -> None:
    """Whether its claims hold is the machine's affair, which others may use meanwhile."""
    out = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--quick", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert "the same load three times" in done.stdout
    report = json.loads(out.read_text())
    assert report["left_behind"] == []
    assert all(report[name]["requests"] > 0 for name in ("alone", "observe", "control"))
