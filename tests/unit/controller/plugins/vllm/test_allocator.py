"""The allocator of a GPU that is not here: a stub says what torch would.

The names are those of torch's own documentation (torch.cuda.memory_stats, 2.x).
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from controller.engines.contract import Knob
from controller.engines.page import Allocator, PageReader, PageWriter
from controller.fragmentation import of_allocator
from controller.plugins.vllm import allocator
from controller.plugins.vllm.allocator import NOT_KNOWN, allocator_of, follow
from controller.plugins.vllm.leased import Leased
from tests.kernel.agent.waiting import becomes

GIB = 1 << 30


@dataclass(slots=True)
class StubCuda:
    """Two GPUs of which this process has some of the second: bytes it reserved, uses, has split."""

    reserved: int = 60 * GIB
    active: int = 50 * GIB
    split: int = 4 * GIB
    left: int = 10 * GIB
    initialized: bool = True
    touched: list[int] = field(default_factory=list)

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, device: int) -> int:
        return self.reserved if device == 1 else 0

    def mem_get_info(self, device: int) -> tuple[int, int]:
        self.touched.append(device)
        return self.left, 80 * GIB

    def memory_stats(self, device: int) -> dict[str, int]:
        self.touched.append(device)
        return {
            "reserved_bytes.all.current": self.reserved,
            "active_bytes.all.current": self.active,
            "inactive_split_bytes.all.current": self.split,
        }


def stub_torch(**more: object) -> SimpleNamespace:
    return SimpleNamespace(cuda=StubCuda(**more))  # type: ignore[arg-type]


def test_what_torch_could_give_back_is_one_piece_with_what_the_driver_has() -> None:
    torch = stub_torch()
    assert allocator_of(torch) == Allocator(80 * GIB, 20 * GIB, 16 * GIB)
    assert set(torch.cuda.touched) == {1}


@pytest.mark.parametrize("more", [{"initialized": False}, {"reserved": 0}])
def test_a_gpu_that_this_process_does_not_use_is_not_touched(more: dict[str, int]) -> None:
    torch = stub_torch(**more)
    assert allocator_of(torch) == NOT_KNOWN
    assert torch.cuda.touched == []


def test_a_torch_without_cuda_is_not_known() -> None:
    assert allocator_of(SimpleNamespace()) == NOT_KNOWN


def test_figures_that_do_not_agree_are_not_more_than_there_is() -> None:
    found = allocator_of(stub_torch(active=61 * GIB))
    assert found == Allocator(80 * GIB, 10 * GIB, 10 * GIB)


def test_the_page_has_it_and_nothing_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "EVERY_S", 0.001)
    page = PageWriter(tmp_path / "page")
    knobs = {"max_running": Knob("max_running", 1, 8, 8, "requests")}
    leased = Leased(knobs, 1000, 512, page)
    reader = PageReader(page.path)
    torch = stub_torch()
    follow(torch, leased.show_allocator, leased.stopped)
    try:
        becomes(lambda: of_allocator(reader.allocator()) == 0.8)
        del torch.cuda
        torch.cuda = SimpleNamespace(is_initialized=lambda: 1 / 0)
        becomes(lambda: reader.allocator() is None)
    finally:
        leased.stop()
        reader.close()
    becomes(lambda: "sits-allocator" not in {each.name for each in threading.enumerate()})
