"""A sitsd with GPUs, which NVML's stand-in describes: in metrics, on the page, for dashboards."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.gpu.conftest import MIB, Stub, compiled, gpu
from tests.unit.deploy.queries import dashboards

from .conftest import Node
from .rig import Site
from .waiting import becomes

pytestmark = pytest.mark.kernel

_FOUND_BY = ("LD_LIBRARY_PATH", "SITS_STUB_NVML")


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    library = tmp_path / "nvml"
    library.mkdir()
    return Stub(compiled(library), tmp_path / "said")


def test_a_gpu_and_whose_work_it_does_are_in_metrics_on_the_page_and_in_dashboards(
    node: Node, site: Site, stub: Stub
) -> None:
    site.write(node.targets())
    environment = (f"{name}={stub.environment[name]}" for name in _FOUND_BY)
    with site.sitsd(wrapper=("env", *environment)) as sitsd:
        (pid, *_) = sitsd.following()["pids"]
        stub.say(gpu(0, reasons=0x4), f"proc 0 {pid} {20_000 * MIB} 40 -1 -1")
        whose = {"gpu": "0", "target": "chat", "kind": "engine"}
        series = ("sits_gpu_target_use_ratio", tuple(sorted(whose.items())))
        becomes(lambda: series in sitsd.metrics())
        assert sitsd.metric("sits_gpu_target_use_ratio", **whose) == 0.4
        assert sitsd.metric("sits_gpu_target_memory_bytes", **whose) == 20_000 * MIB
        assert sitsd.metric("sits_gpu_throttled", gpu="0", reason="power_cap") == 1

        wanted = {name for query in dashboards() for name in query.names if "_gpu_" in name}
        assert wanted
        assert wanted <= {name for name, _ in sitsd.metrics()}

        def rows() -> dict[str, list[Any]]:
            shown = json.loads(sitsd.get("/page.json")[1])["gpus"]
            return {row["name"]: row["sm_percent"] for gpu in shown for row in gpu["rows"]}

        becomes(lambda: "chat" in rows())
        shown = rows()
        assert {name: set(cells) - {None} for name, cells in shown.items()} == {
            "all": {55.0},
            "chat": {40.0},
        }
        assert sitsd.api.status()["gpu"]["devices"][0]["sm_percent"] == 55
