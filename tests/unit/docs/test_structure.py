"""The drawing of the packages is what the code has."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "docs" / "structure.py"


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_is_of_the_code_as_it_is(structure: ModuleType) -> None:
    drawn = structure.DRAWING.read_text()
    assert drawn == structure.drawing(structure.imports()), "run `python docs/structure.py`"


def test_imports_go_one_way(structure: ModuleType) -> None:
    graph = structure.imports()
    assert [name for name in graph if name in structure.reachable(graph, name)] == []
    assert graph["bpf"] == set()
    assert not any(
        "agent" in others for name, others in graph.items() if name.startswith("controller")
    )


def test_arrows_are_left_out_only_where_another_way_leads_there(structure: ModuleType) -> None:
    graph = structure.imports()
    shown = structure.reduced(graph)
    for name in graph:
        assert structure.reachable(shown, name) == structure.reachable(graph, name)
