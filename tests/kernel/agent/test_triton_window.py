"""A tritonserver under sitsd: measured by the kernel, its batch window held by the SLO."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.triton.server import Server, traffic, triton_server
from tests.engines.triton.test_adapter import in_force
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import inside
from .rig import Site, Sitsd
from .waiting import becomes

pytestmark = [pytest.mark.kernel, pytest.mark.engines]

SLOW_MS = 150.0
TTFT_MS = 120
CLIENTS = 3
PATIENCE_S = 90
"""A busy machine makes batches uneven, and the model of them is believed the later."""


@dataclass(frozen=True, slots=True)
class Triton:
    """A server in a cgroup, started with a window too long for its SLO."""

    server: Server
    group: TwinGroup

    def policy(self, site: Site, mode: str) -> None:
        site.write(
            f"""
[controller]
neighbour_pressure = 1.0
[engines.vision]
cgroup = "/{self.group.cpu.name}"
slo = {{ ttft_ms = {TTFT_MS}, gap_ms = 30000 }}
[engines.vision.adapter]
kind = "triton"
address = "{self.server.address}"
model = "batcher"
metrics = "{self.server.metrics}"
""",
            mode,
        )

    def is_cut(self) -> bool:
        return in_force(self.server) < SLOW_MS

    def at_start(self) -> bool:
        return in_force(self.server) == SLOW_MS


@pytest.fixture
def triton(make_cgroup: MakeGroup, tmp_path: Path) -> Iterator[Triton]:
    group = make_cgroup("triton")
    directory = tmp_path / "triton"
    directory.mkdir()

    def wrap(command: list[str]) -> list[str]:
        return inside(group, *command)

    with triton_server(directory, window_ms=SLOW_MS, wrap=wrap) as server:
        yield Triton(server, group)


def following(sitsd: Sitsd) -> None:
    sitsd.engine(lambda engine: engine["admin"]["state"] == "connected")


def test_its_answers_are_measured_and_a_window_that_makes_them_late_is_cut(
    triton: Triton, site: Site
) -> None:
    triton.policy(site, "control")
    with site.sitsd() as sitsd, traffic(triton.server.port, "batcher", CLIENTS) as load:
        following(sitsd)
        late = sitsd.engine(lambda engine: engine["totals"]["ttft_over"] >= 10)
        assert late["ttft_ms"]["p50"] > TTFT_MS
        becomes(triton.is_cut, PATIENCE_S)
        (decision,) = sitsd.decisions()
        assert decision["action"][0]["knob"] == "batch_window_ms"
        assert becomes(lambda: sitsd.events("engine_reloaded"))[0]["subject"] == "vision"
        good = sitsd.engine(lambda engine: (engine["ttft_ms"]["p50"] or TTFT_MS) < TTFT_MS / 2)
        assert "in force after" in good["admin_sockets"][0]["last_ack"]
    assert triton.at_start()
    assert not load.failed


def test_whoever_is_killed_triton_has_its_own_configuration_in_the_end(
    triton: Triton, site: Site
) -> None:
    triton.policy(site, "control")
    for victim in ("controller.adapters.command", "controller.process", "agent"):
        with site.sitsd() as sitsd, traffic(triton.server.port, "batcher", CLIENTS) as load:
            following(sitsd)
            becomes(triton.is_cut, PATIENCE_S)
            if victim == "agent":
                sitsd.kill()
                becomes(triton.at_start)
                continue
            process = sitsd.child(victim)
            assert process is not None, victim
            process.kill()
            becomes(triton.at_start)
        assert triton.at_start(), victim
        assert not load.failed, victim
