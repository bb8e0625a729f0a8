"""Two engines on one core: neither outbids the other, and neighbours are held for both by one."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from tests.engines.reference_process import Running
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import burning, limits
from .rig import Site, Sitsd
from .traffic import engine_in, load
from .waiting import becomes

pytestmark = pytest.mark.kernel

Pair = tuple[tuple[Running, TwinGroup], tuple[Running, TwinGroup]]


@pytest.fixture(scope="module")
def pair(make_cgroup: MakeGroup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        made = []
        for name in ("worth-more", "worth-less"):
            group = make_cgroup(name)
            directory = tmp_path_factory.mktemp(name)
            made.append((stack.enter_context(engine_in(group, directory)), group))
        yield made[0], made[1]


def policy(pair: Pair, more: str = "", weight_max: int = 10_000) -> str:
    """Both engines in trouble whatever they do: no chunk comes within a millisecond."""
    text = more
    for (_, group), name, its in zip(pair, ("a", "b"), ("slo-a", "slo-b"), strict=True):
        text += f"""
[engines.{name}]
cgroup = "/{group.cpu.name}"
class = "{its}"
slo = {{ ttft_ms = 60000, gap_ms = 1 }}
limits = {{ cpu_weight_max = {weight_max} }}
"""
    return text


NOT_IDLE = """
[classes.held]
cpu_share = 1
idle = false
[classes.freezable]
cpu_share = 0.25
freeze_ms = 800
retry_ms = 200
idle = false
"""
"""Classes whose work is held by what comes after that."""


def weights(sitsd: Sitsd) -> tuple[int, int]:
    a, b = (each["cpu_weight"] for each in sitsd.api.status()["engines"])
    return (a["value"], b["value"]) if a and b else (0, 0)


def quota_decisions(sitsd: Sitsd) -> list[Mapping[str, Any]]:
    """Those that cut a quota, oldest first."""
    return [
        each
        for each in reversed(sitsd.decisions())
        if any(c["knob"] == "cpu_quota" and c["to"] != "original" for c in each["action"])
    ]


def test_the_engine_whose_slo_is_worth_more_has_the_higher_weight(pair: Pair, site: Site) -> None:
    before = limits(*(group for _, group in pair))
    site.write(policy(pair), "control")
    with site.sitsd() as sitsd:
        sitsd.ready()
        with load(pair[0][0], clients=3), load(pair[1][0], clients=3):
            # the one may be raised a moment before the other, and before there is any dividing
            becomes(lambda: any("gets its part" in each["reason"] for each in sitsd.decisions()))
            becomes(lambda: (w := weights(sitsd))[0] == 10_000 and w[1] < 5_000)
            for _ in range(20):
                time.sleep(0.1)
                a, b = weights(sitsd)
                assert a > b
    assert limits(*(group for _, group in pair)) == before


def test_a_neighbour_of_both_is_cut_in_the_rhythm_of_one_and_given_back(
    pair: Pair, site: Site, make_cgroup: MakeGroup
) -> None:
    neighbours = [make_cgroup(f"beside-both-{number}") for number in range(6)]
    settings = 'class = "held"\nmin_cores = 0.01\n'
    table = NOT_IDLE + "".join(
        f'[neighbours.n{number}]\ncgroup = "/{each.cpu.name}"\n{settings}'
        for number, each in enumerate(neighbours)
    )
    site.write(policy(pair, table, weight_max=0), "control")
    with site.sitsd() as sitsd, burning(*neighbours):
        sitsd.ready()
        with load(pair[0][0], clients=3), load(pair[1][0], clients=3):
            becomes(lambda: quota_decisions(sitsd))
            time.sleep(2)
            cuts = quota_decisions(sitsd)
        # of one neighbour: each decision may cut others
        times = [
            each["mono_ns"] for each in cuts if any(c["target"] == "n0" for c in each["action"])
        ]
        assert all(b - a >= 450_000_000 for a, b in pairwise(times))
        held = sitsd.api.neighbours()["neighbours"]
        assert any(each["quota_cores"] is not None and each["held_s"] > 0 for each in held)
        sitsd.api.set_mode("observe", "test")
        sitsd.status(lambda s: all(n["quota_cores"] is None for n in s["neighbours"]))


def test_what_its_class_allows_is_frozen_for_a_while_and_runs_again(
    pair: Pair, site: Site, make_cgroup: MakeGroup
) -> None:
    neighbours = [make_cgroup(f"freezable-{number}") for number in range(6)]
    settings = 'class = "freezable"\nmin_cores = 1.0\n'
    table = NOT_IDLE + "".join(
        f'[neighbours.n{number}]\ncgroup = "/{each.cpu.name}"\n{settings}'
        for number, each in enumerate(neighbours)
    )
    site.write(policy(pair, table, weight_max=0), "control")
    with site.sitsd() as sitsd, burning(*neighbours):
        sitsd.ready()
        with load(pair[0][0], clients=3), load(pair[1][0], clients=3):
            status = sitsd.status(lambda s: any(n["freezes"] >= 2 for n in s["neighbours"]))
        assert {each["class"] for each in status["neighbours"]} == {"freezable"}
        assert max(each["longest_freeze_s"] for each in status["neighbours"]) > 0
        sitsd.api.set_mode("observe", "test")
        becomes(lambda: all("frozen 0" in (n.v2 / "cgroup.events").read_text() for n in neighbours))
