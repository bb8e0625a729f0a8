import os
import struct
import subprocess
import sys
from array import array
from dataclasses import astuple
from pathlib import Path

import pytest

from controller.engines.page import (
    PAGE_BYTES,
    STEP_SLOTS,
    Allocator,
    EngineNow,
    PageError,
    PageReader,
    PageWriter,
    Step,
)
from controller.fragmentation import of_allocator

FIELDS = 22

WRITER = """
import sys
from array import array
from dataclasses import astuple
import time
from pathlib import Path
from controller.engines.page import EngineNow, PageWriter, Step
writer = PageWriter(Path(sys.argv[1]))
print("ready", flush=True)
k = 0
while True:
    for _ in range(100):
        k += 1
        writer.write(EngineNow(*[k] * 22), Step(*[k] * 6))
    time.sleep(0.0005)
"""


def step_of(index: int) -> Step:
    return Step(index, index * 10, 5, 1, 2, 3)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    reader = PageReader(tmp_path / "page")
    now = EngineNow(*range(1, FIELDS + 1))
    writer.write(now)
    read = reader.read()
    assert read is not None
    assert read[0] == now
    reader.close()
    writer.close()
    assert not (tmp_path / "page").exists()


def test_a_reader_gets_each_step_once_and_in_order(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    reader = PageReader(tmp_path / "page")
    seen: list[Step] = []
    for index in range(1, 200):
        writer.write(EngineNow(steps=index), step_of(index))
        if index % 7 == 0:
            read = reader.read(after_step=seen[-1].index if seen else 0)
            assert read is not None
            seen += read[1]
    assert seen == [step_of(index) for index in range(1, 197)]
    reader.close()
    writer.close()


def test_a_late_reader_gets_the_steps_still_kept(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    for index in range(1, 301):
        writer.write(EngineNow(steps=index), step_of(index))
    reader = PageReader(tmp_path / "page")
    read = reader.read()
    assert read is not None
    assert [step.index for step in read[1]] == list(range(300 - STEP_SLOTS + 1, 301))
    reader.close()
    writer.close()


def test_a_reader_never_sees_half_a_write_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "page"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            reader = PageReader(path)
            distinct = set()
            for _ in range(5_000):
                read = reader.read()
                if read is None:
                    continue
                now, steps = read
                assert now == EngineNow(*[now.steps] * FIELDS)
                assert all(step == Step(*[step.index] * 6) for step in steps)
                assert [step.index for step in steps] == list(
                    range(max(1, now.steps - STEP_SLOTS + 1), now.steps + 1)
                )
                distinct.add(now.steps)
            reader.close()
            assert len(distinct) > 20
        finally:
            writer.kill()


def test_a_writer_that_died_half_way_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page"
    writer = PageWriter(path)
    reader = PageReader(path)
    with path.open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<Q", 7))
    assert reader.read() is None
    reader.close()
    writer.close()


def test_a_page_that_was_cut_short_gives_nothing_and_ends_nobody(tmp_path: Path) -> None:
    path = tmp_path / "page"
    writer = PageWriter(path)
    writer.write(EngineNow(steps=3))
    reader = PageReader(path)
    for size in (PAGE_BYTES - 1, 100, 20, 0):
        os.truncate(path, size)
        assert reader.read() is None
    os.truncate(path, PAGE_BYTES)
    assert reader.read() == (EngineNow(), [])
    reader.close()
    writer.close()


def test_slots_that_hold_other_steps_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "page"
    writer = PageWriter(path)
    writer.write(EngineNow(steps=6), step_of(5))
    reader = PageReader(path)
    assert reader.read() == (EngineNow(steps=6), [step_of(5)])
    writer.write(EngineNow(steps=2**64 - 1))
    assert reader.read() == (EngineNow(steps=2**64 - 1), [])
    reader.close()
    writer.close()


def test_the_table_of_the_document_is_the_layout(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    writer.write(
        EngineNow(
            *range(101, 101 + FIELDS),
        ),
        Step(65, 1, 2, 3, 4, 5),
    )
    raw = (tmp_path / "page").read_bytes()
    writer.close()
    document = (Path(__file__).parents[4] / "docs" / "engine-protocol.md").read_text()
    assert len(raw) == PAGE_BYTES
    assert struct.unpack_from("<8sIIQ", raw) == (b"SITSPAGE", 1, PAGE_BYTES, 2)
    for index, name in enumerate(EngineNow.__dataclass_fields__):
        offset = 64 + 8 * index
        assert f"| {offset} | 8 | `{name}`" in document
        assert struct.unpack_from("<Q", raw, offset) == (101 + index,)
    for index, (name, value) in enumerate(
        zip(Step.__dataclass_fields__, (65, 1, 2, 3, 4, 5), strict=True)
    ):
        assert f"| {8 * index} | 8 | `{name}`" in document
        assert struct.unpack_from("<Q", raw, 256 + 48 * (65 % 64) + 8 * index) == (value,)


@pytest.mark.parametrize("content", [b"", b"x" * PAGE_BYTES, b"SITSPAGE" + bytes(PAGE_BYTES - 8)])
def test_another_file_is_no_page(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "page"
    path.write_bytes(content)
    with pytest.raises(PageError, match="could not read stats page"):
        PageReader(path)


def test_a_page_replaces_an_older_page_but_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "page"
    old = PageWriter(path)
    new = PageWriter(path)
    new.write(EngineNow(steps=3))
    reader = PageReader(path)
    read = reader.read()
    assert read is not None
    assert read[0].steps == 3
    reader.close()
    new.close()
    old.close()
    path.write_text("a diary")
    with pytest.raises(PageError, match="another file is there"):
        PageWriter(path)
    assert path.read_text() == "a diary"


def test_an_allocator_is_shown_beside_the_figures(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    reader = PageReader(writer.path)
    assert reader.allocator() is None
    writer.show_allocator(Allocator(1000, 400, 150))
    writer.write(EngineNow(running=3))
    assert reader.allocator() == Allocator(1000, 400, 150)
    assert of_allocator(reader.allocator()) == 0.85
    writer.show_allocator(Allocator(1000, 400, 500))
    assert reader.allocator() is None
    reader.close()
    writer.close()


def test_figures_are_written_as_they_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page"
    writer, reader = PageWriter(page), PageReader(page)
    figures = array("Q", [7, 1, *[0] * (FIELDS - 2)])
    writer.publish(figures, astuple(step_of(1)))
    figures[0] = 8
    assert reader.read() == (EngineNow(7, 1), [step_of(1)])
    writer.publish(figures)
    assert reader.read() == (EngineNow(8, 1), [step_of(1)])
    reader.close()
    writer.close()
