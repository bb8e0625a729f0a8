"""Another policy while sitsd runs: what it changes in the kernel, the controller and the files."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from agent.client import RefusedError
from controller.conformance.wire import Wire
from controller.engines.link import OWNER
from tests.engines.reference_process import Running

from .conftest import Node
from .groups import burning, favoured, limits
from .rig import Site, Sitsd
from .test_knobs import NO_NEIGHBOURS, lowered
from .traffic import at_start, load, long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel

ALWAYS_MS = 30_000
"""A gap SLO that is always met."""


def sitsctl(sitsd: Sitsd, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            Path(sys.executable).with_name("sitsctl"),
            "--socket",
            sitsd.site.admin_socket,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def new_file(site: Site, *changes: tuple[str, str]) -> Path:
    """The policy with other texts, in a file beside it."""
    text = site.policy.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = site.directory / "new.toml"
    file.write_text(text)
    return file


@contextmanager
def lets_go_only_by_decision(sitsd: Sitsd, engine: Running) -> Iterator[None]:
    """Meanwhile the lease ends only where a decision says so.

    What did no good is taken back by itself, and on a machine short of CPU a lease may run out.
    """

    def expiries() -> int:
        return int(watcher.ask("stats").ok()["now"]["lease_expiries_total"])

    def decided() -> int:
        return sum(
            any(change["to"] == "start" for change in decision["action"])
            for decision in sitsd.decisions()
        )

    with closing(Wire(engine.admin)) as watcher:
        before = expiries() + decided()
        watcher.ask("watch").ok()
        yield
        ran_out = expiries()
        owners = [OWNER, *(event["owner"] for event in watcher.events)]
        ends = sum(a is not None and b is None for a, b in pairwise(owners))
        becomes(lambda: ends <= ran_out + decided() - before)


def test_the_kernel_judges_by_the_new_slo_at_once(node: Node, site: Site) -> None:
    site.write(node.targets(gap_ms=ALWAYS_MS))
    with site.sitsd() as sitsd, load(node.engine, clients=2) as traffic:
        sitsd.following()
        traffic.grows_to(2)
        assert sitsd.metric("sits_chunk_gaps_over_slo_total", engine="chat") == 0
        file = new_file(site, (f"gap_ms = {ALWAYS_MS}", "gap_ms = 1"))
        answer = sitsd.api.policy_apply(file.read_text(), str(file))
        assert [change["key"] for change in answer["changes"]] == ["engines.chat.slo.gap_ms"]
        becomes(lambda: sitsd.metric("sits_chunk_gaps_over_slo_total", engine="chat") > 0)
        assert sitsd.metric("sits_slo_seconds", engine="chat", of="gap") == 0.001
        assert sitsd.api.status()["engines"][0]["slo"]["gap_ms"] == 1
        traffic.grows_to(len(traffic.seen) + 2)
    assert traffic.failures == []


def test_a_policy_is_kept_over_a_restart_unless_it_is_temporary(node: Node, site: Site) -> None:
    site.write(node.targets(gap_ms=100))
    before = site.policy.read_text()
    with site.sitsd() as sitsd:
        file = new_file(site, ("gap_ms = 100", "gap_ms = 200"))
        done = sitsctl(sitsd, "policy", "apply", str(file), "--temporary")
        assert done.returncode == 0, done.stderr
        assert sitsd.api.status()["engines"][0]["slo"]["gap_ms"] == 200
        assert site.policy.read_text() == before
        sitsd.kill()
    with site.sitsd() as sitsd:
        assert sitsd.api.status()["engines"][0]["slo"]["gap_ms"] == 100
        assert sitsctl(sitsd, "policy", "apply", str(file)).returncode == 0
        sitsd.kill()
    with site.sitsd() as sitsd:
        assert sitsd.api.status()["engines"][0]["slo"]["gap_ms"] == 200
    assert site.policy.with_name("policy.toml.previous").read_text() == before


def test_a_broken_file_changes_nothing_and_names_the_line(node: Node, site: Site) -> None:
    site.write(node.targets(gap_ms=100))
    before = site.policy.read_text()
    with site.sitsd() as sitsd:
        shown = sitsd.api.policy()
        file = new_file(site, ("gap_ms = 100", "gap_ms = 0"))
        line = 1 + next(
            n for n, line in enumerate(file.read_text().split("\n")) if "gap_ms = 0" in line
        )
        done = sitsctl(sitsd, "policy", "apply", str(file))
        assert done.returncode == 1
        assert f"{file}:{line}: engines.chat.slo.gap_ms: must be a number of ms" in done.stderr
        file = new_file(site, ("[agent]", "[agent]\nmax_targets=7"))
        with pytest.raises(RefusedError, match=r"agent\.max_targets 64 → 7: needs a restart"):
            sitsd.api.policy_apply(file.read_text(), str(file))
        assert sitsd.api.policy() == shown
        assert site.policy.read_text() == before
        assert sitsd.events("policy") == []


def test_a_signal_has_the_file_read_again(node: Node, site: Site) -> None:
    site.write(node.targets(gap_ms=100))
    with site.sitsd() as sitsd:
        site.policy.write_text(site.policy.read_text().replace("gap_ms = 100", "gap_ms = 150"))
        sitsd.process.send_signal(signal.SIGHUP)
        sitsd.engine(lambda engine: engine["slo"]["gap_ms"] == 150)
        site.policy.write_text("mode = 1")
        sitsd.process.send_signal(signal.SIGHUP)
        said = "policy.toml:1: mode: must be"
        sitsd.status(lambda status: any(said in problem for problem in status["problems"]))
        assert sitsd.api.status()["engines"][0]["slo"]["gap_ms"] == 150
        site.write(node.targets(gap_ms=160))
        sitsd.process.send_signal(signal.SIGHUP)
        sitsd.status(lambda status: not any("policy" in each for each in status["problems"]))
        assert sitsd.api.status()["engines"][0]["slo"]["gap_ms"] == 160


def test_engines_and_neighbours_come_and_go_with_the_policy(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd, load(node.engine) as traffic:
        sitsd.following()
        traffic.grows_to(2)
        file = new_file(
            site, ("[engines.chat]", "[engines.code]"), ("[neighbours.n0]", "[neighbours.m0]")
        )
        sitsd.api.policy_apply(file.read_text(), str(file))
        status = sitsd.status(lambda status: status["engines"][0]["admin"]["state"] == "connected")
        assert [engine["name"] for engine in status["engines"]] == ["code"]
        assert {n["name"] for n in status["neighbours"] if n["found"]} <= {
            "m0",
            "n1",
            "n2",
            "n3",
            "n4",
            "n5",
        }
        becomes(lambda: sitsd.metric("sits_chunks_total", engine="code") > 0)
        assert not any(("engine", "chat") in labels for _, labels in sitsd.metrics())
        becomes(lambda: sitsd.api.streams("code")["streams"])
        sitsd.api.policy_apply("\n".join(site.policy.read_text().split("[engines")[:1]), "none")
        assert sitsd.api.status()["engines"] == []
    assert traffic.failures == []


def test_the_controller_keeps_its_lease_and_a_new_one_has_the_policy_in_force(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: lowered(node))
            file = new_file(site, ("ttft_ms = 60000", "ttft_ms = 50000"))
            with lets_go_only_by_decision(sitsd, node.engine):
                sitsd.api.policy_apply(file.read_text(), str(file))
                status = sitsd.api.status()
                assert status["controller"]["restarts"] == 0
            os.kill(status["controller"]["pid"], signal.SIGKILL)
            sitsd.status(lambda status: status["controller"]["restarts"] == 1)
            becomes(lambda: lowered(node))
            floor = f"[engines.chat.knobs]\nmin_batched_tokens = 1000000\n{NO_NEIGHBOURS}"
            file = new_file(site, (NO_NEIGHBOURS, floor))
            sitsd.api.policy_apply(file.read_text(), str(file))
            becomes(lambda: at_start(node.engine))
            assert sitsd.api.status()["controller"]["restarts"] == 1


def test_what_may_not_be_limited_any_more_is_given_back(node: Node, site: Site) -> None:
    before = limits(node.group)
    site.write(node.targets(ttft_ms=20, gap_ms=20), "control")
    with site.sitsd() as sitsd, burning(*node.neighbours), load(node.engine):
        becomes(lambda: limits(node.group) != before)
        socket = f'admin_socket = "{node.engine.admin}"'
        file = new_file(site, (socket, f"{socket}\nlimits.cpu_weight_max = 0"))
        sitsd.api.policy_apply(file.read_text(), str(file))
        becomes(lambda: limits(node.group) == before)
        (event,) = becomes(lambda: sitsd.events("given_back"))
        assert event["detail"]["what"] == "cpu_weight"


def test_a_mode_of_the_policy_comes_into_force_and_one_of_the_operator_stays(
    node: Node, site: Site
) -> None:
    site.write(node.targets(gap_ms=100), "observe")
    with site.sitsd() as sitsd:
        sitsd.api.set_mode("shadow", "test")
        sitsd.status(lambda status: status["mode"] == "shadow")
        file = new_file(site, ("gap_ms = 100", "gap_ms = 200"))
        sitsd.api.policy_apply(file.read_text(), str(file))
        assert sitsd.api.status()["mode"] == "shadow"
        file = new_file(site, ('mode = "observe"', 'mode = "control"'))
        sitsd.api.policy_apply(file.read_text(), str(file))
        assert sitsd.api.status()["mode"] == "control"
