"""Cgroups that no table names and that take an engine's CPU: named, and limited where allowed."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.reference_process import Running
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import burning, limits
from .rig import Site, Sitsd
from .traffic import engine_in, load
from .waiting import becomes

pytestmark = pytest.mark.kernel

STRANGERS = 3


@pytest.fixture(scope="module")
def engine(
    make_cgroup: MakeGroup, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, TwinGroup]]:
    group = make_cgroup("beside-strangers")
    with engine_in(group, tmp_path_factory.mktemp("engine")) as running:
        yield running, group


def policy(group: TwinGroup, limit_found: str) -> str:
    """Always in trouble, and not to be helped by its own weight: others have to be limited."""
    return f"""
[discovery]
limit_found = {limit_found}
[engines.chat]
cgroup = "/{group.cpu.name}"
slo = {{ ttft_ms = 60000, gap_ms = 1 }}
limits = {{ cpu_weight_max = 0 }}
"""


def is_held(neighbour: dict[str, Any]) -> bool:
    """Where a cgroup can be idle, that is all it takes."""
    return bool(neighbour["idle"] or neighbour["quota_cores"])


def found(sitsd: Sitsd, strangers: list[TwinGroup]) -> list[dict[str, Any]]:
    """The candidates that are strangers of this test; the machine may have others."""
    ours = {f"/{each.cpu.name}" for each in strangers}
    return [each for each in sitsd.api.status()["candidates"] if each["cgroup"] in ours]


def test_they_are_named_and_left_alone_unless_the_policy_allows_more(
    engine: tuple[Running, TwinGroup], make_cgroup: MakeGroup, site: Site
) -> None:
    running, group = engine
    strangers = [make_cgroup(f"stranger-{number}") for number in range(STRANGERS)]
    before = limits(*strangers)
    site.write(policy(group, "false"), "control")
    with site.sitsd() as sitsd, burning(*strangers), load(running, clients=3):
        seen = becomes(lambda: found(sitsd, strangers))
        assert {each["engine"] for each in seen} == {"chat"}
        assert {each["protected"] for each in seen} == {None}
        sitsd.engine(lambda e: e["cause"] == "neighbour_cpu")
        assert sitsd.api.status()["neighbours"] == []
        assert sitsd.decisions() == []
        assert limits(*strangers) == before


def test_where_it_does_they_are_held_by_name_and_get_everything_back(
    engine: tuple[Running, TwinGroup], make_cgroup: MakeGroup, site: Site
) -> None:
    running, group = engine
    strangers = [make_cgroup(f"held-{number}") for number in range(STRANGERS)]
    before = limits(*strangers)
    site.write(policy(group, "true"), "control")
    with site.sitsd() as sitsd:
        with burning(*strangers), load(running, clients=3):
            names = {f"found/{each.cpu.name}" for each in strangers}
            status = sitsd.status(
                lambda s: any(n["name"] in names and is_held(n) for n in s["neighbours"])
            )
            held = {n["name"] for n in status["neighbours"] if is_held(n)} & names
            assert becomes(lambda: limits(*strangers) != before)
            becomes(
                lambda: [
                    each
                    for each in sitsd.decisions()
                    if each["ack"] == "applied"
                    and any(change["target"] in held for change in each["action"])
                ]
            )
        assert sitsd.end() == 0
    assert limits(*strangers) == before
    assert not site.undo.exists()
