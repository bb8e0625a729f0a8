"""An end and a new beginning: what stays, what is given back, what is taken away."""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller.limits.cgroup import cpu_group, read_hierarchies
from controller.limits.limiter import Limiter

from .conftest import Node
from .groups import burning, limits
from .rig import Site, Sitsd, free_port, gone
from .traffic import at_start, load
from .waiting import becomes

pytestmark = pytest.mark.kernel

COUNTED = ("sits_chunks_total", "sits_requests_total", "sits_time_to_first_token_seconds_count")


def counts(sitsd: Sitsd) -> list[float]:
    return [sitsd.metric(name, engine="chat") for name in COUNTED]


def test_counters_go_on_over_kills_with_streams_under_way(node: Node, site: Site) -> None:
    site.write(node.targets())
    seen = [[0.0] * len(COUNTED)]
    with site.sitsd() as sitsd:
        sitsd.following()
        sitsd.kill()
    with load(node.engine, clients=3) as traffic:
        for _ in range(3):
            traffic.grows_to(len(traffic.seen) + 4)
            with site.sitsd() as sitsd:
                seen.append(counts(sitsd))
                traffic.grows_to(len(traffic.seen) + 4)
                seen.append(counts(sitsd))
                sitsd.kill()
    for earlier, later in itertools.pairwise(seen):
        assert all(a < b for a, b in zip(earlier, later, strict=True))
    with site.sitsd() as sitsd:
        streams = len(traffic.seen)
        assert counts(sitsd) == [traffic.chunks, streams, streams]
        starts = becomes(lambda: (found := sitsd.events("start"))[4:] and found)
        loaded = [event["detail"]["loaded"] for event in reversed(starts)]
        assert loaded == ["fresh", *["adopted"] * 4]


def test_other_settings_of_the_same_layout_keep_the_counters(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(2)
        before = becomes(lambda: (c := counts(sitsd))[1] >= len(traffic.seen) and c)
    site.metrics_port = free_port()
    site.write(node.targets(gap_ms=1_000))
    with site.sitsd() as sitsd:
        sitsd.following()
        assert sitsd.engine(lambda e: e["slo"]["gap_ms"] == 1_000)
        assert counts(sitsd) == before


@contextmanager
def limited(node: Node, site: Site) -> Iterator[Sitsd]:
    """A sitsd that holds a weight."""
    site.write(node.targets(ttft_ms=20, gap_ms=20), "control")
    before = limits(node.group)
    with site.sitsd() as sitsd:
        with burning(*node.neighbours), load(node.engine):
            becomes(lambda: limits(node.group) != before)
        yield sitsd


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_gives_everything_back_and_leaves_only_pins(
    node: Node, site: Site, signal_number: signal.Signals
) -> None:
    before = limits(node.group, *node.neighbours)
    with limited(node, site) as sitsd:
        becomes(lambda: len(sitsd.family()) == 2)
        family = sitsd.family()
        os.kill(sitsd.process.pid, signal_number)
        os.kill(sitsd.process.pid, signal_number)
        assert sitsd.process.wait(60) == 0, sitsd.log
        assert gone(family)
    assert limits(node.group, *node.neighbours) == before
    assert at_start(node.engine)
    assert not site.undo.exists()
    assert not site.admin_socket.exists()
    assert {each.name for each in site.pin_dir.iterdir()} == {
        "layout",
        "links",
        "maps",
        "programs",
    }
    unloaded = site.run("--unload")
    assert (unloaded.returncode, unloaded.stderr) == (0, "")
    assert not site.pin_dir.exists()
    assert site.run("--unload").returncode == 0


def test_undo_gives_back_what_a_dead_agent_left(node: Node, site: Site) -> None:
    site.write(node.targets())
    before = limits(node.group)
    site.undo.parent.mkdir()
    group = cpu_group(read_hierarchies(), f"/{node.group.cpu.name}")
    Limiter(site.undo).set_weight(group, 5_000, "of a test")
    assert limits(node.group) != before
    done = site.run("--undo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is back at" in done.stdout
    assert limits(node.group) == before
    assert not site.undo.exists()
    again = site.run("--undo")
    assert (again.returncode, again.stdout) == (0, "")


def test_a_start_gives_back_what_a_dead_agent_left_and_says_so(node: Node, site: Site) -> None:
    site.write(node.targets())
    before = limits(node.group)
    site.undo.parent.mkdir()
    group = cpu_group(read_hierarchies(), f"/{node.group.cpu.name}")
    Limiter(site.undo).set_weight(group, 5_000, "of a test")
    with site.sitsd() as sitsd:
        assert limits(node.group) == before
        assert "an earlier run left limits behind" in sitsd.log


def test_the_journal_goes_on_and_what_a_killed_run_left_open_is_lost(
    node: Node, site: Site
) -> None:
    with limited(node, site) as sitsd:
        first = becomes(sitsd.decisions)
        sitsd.kill()
    site.write(node.targets())
    with site.sitsd() as sitsd:
        rows = sitsd.decisions()
        assert {row["id"] for row in first} <= {row["id"] for row in rows}
        assert "pending" not in {row["ack"] for row in rows}
        assert json.dumps(rows)
