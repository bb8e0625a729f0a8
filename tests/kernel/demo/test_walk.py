"""A newcomer's walk: a fault comes, and is found by `sitsctl explain` and on the page."""

import re
from pathlib import Path

import pytest

from bpf.features import Features
from tests.walk.walk import FOUND_WITHIN_S, walk

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def test_a_fault_is_found_within_a_minute_and_every_step_is_kept(
    features: Features, tmp_path: Path
) -> None:
    found = walk(tmp_path / "walk", watched_s=3)
    assert found.by_explain_s <= FOUND_WITHIN_S
    assert found.on_page_s <= FOUND_WITHIN_S
    texts = {path.stem[3:]: path.read_text() for path in found.steps if path.suffix == ".txt"}
    assert texts["mode"].splitlines()[-1] == "mode is now control"
    assert "neighbour_cpu" in texts["explain"]
    assert re.search(
        r"^  sh +[\d.]+ ms in \d+ waits +\S+/neighbour-\d$", texts["explain"], re.MULTILINE
    )
    assert max(len(line) for text in texts.values() for line in text.splitlines()) <= 80
    assert all(path.stat().st_size for path in found.steps)
