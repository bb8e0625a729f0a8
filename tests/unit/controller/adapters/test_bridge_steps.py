from pathlib import Path

from controller.adapters.bridge import Bridge
from controller.adapters.driver import Figures
from controller.adapters.undo import Undo, UndoFile
from controller.engines.page import PageReader, PageWriter, Step
from tests.unit.controller.adapters.file_engine import engine_at


def test_steps_that_a_driver_tells_are_on_the_page_with_its_largest_batch(tmp_path: Path) -> None:
    engine = engine_at(tmp_path / "engine")
    steps = (Step(41, 900, 30, 4, 0, 0), Step(42, 900, 50, 8, 0, 0))
    engine.told = Figures(steps=42, ended=steps, max_batched_tokens=8)
    undo, page = UndoFile(tmp_path / "undo"), PageWriter(tmp_path / "page")
    start = engine.read()
    record = Undo("file", {}, "first", engine.keep(), start, start, None)
    bridge = Bridge(engine, engine.identify(), engine.knobs(), undo, record, page)
    bridge.work()
    shown = PageReader(page.path).read(after_step=40)
    assert shown is not None
    assert list(steps) == shown[1]
    assert (shown[0].steps, shown[0].max_batched_tokens) == (42, 8)
    bridge.close()
    page.close()
    undo.close()
