"""The dashboards can be imported, and can be read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from .queries import DASHBOARDS

NEWER: Final = {"options.tooltip.mode", "options.tooltip.showColorScale"}
"""Of heat maps, since Grafana 10.2; before that they are passed over."""

THE_DATA_SOURCES: Final = {"list.titleFormat", "list.step"}
"""Of an annotation, which Prometheus' data source reads and the models leave to it."""


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    plugins.register_default_plugins()


def lost(before: Any, after: Any, where: tuple[str, ...] = ()) -> Iterator[str]:
    """The last three names of everything in `before` that is not in `after`."""
    match before, after:
        case dict(), dict():
            for name, value in before.items():
                yield from lost(value, after.get(name), (*where, name))
        case list(), list() if len(before) == len(after):
            for one, other in zip(before, after, strict=True):
                yield from lost(one, other, where)
        case _ if before != after:
            yield ".".join(where[-3:])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_grafanas_own_models_know_everything_in_it(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    written = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    unknown = {each.removeprefix("annotations.") for each in lost(dashboard, written)}
    assert unknown - NEWER - THE_DATA_SOURCES == set()


def test_a_name_that_grafana_does_not_know_would_be_found() -> None:
    dashboard = json.loads(DASHBOARDS[0].read_text())
    dashboard["panels"][1]["feildConfig"] = {}
    written = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert "panels.feildConfig" in set(lost(dashboard, written))


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
