"""The dashboards can be imported, and can be read."""

import json
from pathlib import Path

import pytest

from .queries import DASHBOARDS


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_is_named_after_its_file_and_takes_any_data_source(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert {
        json.dumps(panel["datasource"]) for panel in dashboard["panels"] if "targets" in panel
    } == {'{"type": "prometheus", "uid": "${datasource}"}'}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_have_titles_and_numbers_of_their_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_neither_overlap_nor_leave_the_grid(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not taken & cells, panel["title"]
        taken |= cells
