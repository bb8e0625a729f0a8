"""A policy on trial under load: a bad one is rolled back by itself, a good one adopted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from agent.client import RefusedError

from .conftest import Node
from .groups import favoured
from .rig import Site, Sitsd
from .test_knobs import NO_NEIGHBOURS
from .traffic import LONG_PROMPT, at_start, engine_in, knobs, load
from .waiting import becomes

pytestmark = pytest.mark.kernel

CANARY_S: Final = 36
"""The shortest there is, of slices of two seconds."""

PATIENCE_S: Final = 3 * CANARY_S + 30.0
TTFT_MS: Final = 1000


@contextmanager
def busy(node: Node) -> Iterator[None]:
    """Prompts short and long, more than run one at a time in good time."""
    with (
        favoured(node.group),
        load(node.engine, clients=6, max_tokens=24) as short,
        load(node.engine, clients=2, max_tokens=4, prompt=LONG_PROMPT, pause_s=0.2) as long,
    ):
        yield
    assert short.failures + long.failures == []


def canary(sitsd: Sitsd) -> dict[str, Any]:
    return dict(sitsd.api.policy_status()["canary"])


def ended(sitsd: Sitsd) -> dict[str, Any]:
    """The canary once it is over."""
    return becomes(
        lambda: (now := canary(sitsd))["state"] != "running" and now, PATIENCE_S
    ) or canary(sitsd)


def new_turn(sitsd: Sitsd, gap_ms: float) -> dict[str, Any]:
    """The engine once it is under the policy on trial, by that one's SLO."""
    return sitsd.engine(lambda engine: engine["slo"]["gap_ms"] == gap_ms)


def in_control(node: Node, site: Site, gap_ms: float) -> str:
    """A policy in control with a gap SLO that long prompts beside short ones just meet."""
    site.write(node.targets(ttft_ms=TTFT_MS, gap_ms=2 * gap_ms, more=NO_NEIGHBOURS), "control")
    return site.policy.read_text()


def with_gap(text: str, gap_ms: float) -> str:
    """The same policy with another gap SLO."""
    before, _, rest = text.partition("gap_ms = ")
    return f"{before}gap_ms = {gap_ms} {rest[rest.index('}') :]}"


def test_a_bad_policy_is_rolled_back_without_an_operator(
    node: Node, site: Site, gap_ms: float
) -> None:
    """A gap SLO far too small: one request runs at a time, the others wait."""
    text = in_control(node, site, gap_ms)
    with site.sitsd() as sitsd:
        sitsd.following()
        with busy(node):
            sitsd.api.policy_try(with_gap(text, 1), "bad.toml", CANARY_S)
            new_turn(sitsd, 1)
            becomes(lambda: knobs(node.engine)["values"]["max_running"] == 1)
            assert sitsd.metric("sits_policy_canary_active") == 1
            over = ended(sitsd)
            assert over["state"] == "rolled_back"
            assert over["reason"].startswith("worse: ")
            (seen,) = over["figures"].values()
            assert seen["new"]["ttft_p95_ms"] > 1.5 * seen["old"]["ttft_p95_ms"]
            sitsd.engine(lambda engine: engine["slo"]["gap_ms"] == pytest.approx(2 * gap_ms))
            becomes(lambda: knobs(node.engine)["values"]["max_running"] > 1)
        assert sitsd.metric("sits_policy_canary_active") == 0
        assert sitsd.metric("sits_policy_canary_ended_total", outcome="rolled_back") == 1
        assert sitsd.metric("sits_slo_seconds", engine="chat", of="gap") == pytest.approx(
            2 * gap_ms / 1e3
        )
        last, first = becomes(lambda: (e := sitsd.events("policy_canary"))[1:] and e)
        assert (first["detail"]["state"], last["detail"]["state"]) == ("running", "rolled_back")
        assert last["detail"]["reason"] == over["reason"]
        assert sitsd.events("policy") == []
    assert site.policy.read_text() == text
    assert [file.name for file in site.directory.glob("policy.toml*")] == ["policy.toml"]
    assert at_start(node.engine)


def test_a_good_policy_is_adopted_and_written(node: Node, site: Site) -> None:
    site.write(node.targets(ttft_ms=5_000, gap_ms=500, more=NO_NEIGHBOURS), "control")
    text = site.policy.read_text()
    new = with_gap(text, 400)
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), load(node.engine, clients=3, max_tokens=16) as traffic:
            answer = sitsd.api.policy_try(new, "good.toml", CANARY_S)
            assert (answer["in_file"], answer["previous"]) == (True, None)
            over = ended(sitsd)
        assert traffic.failures == []
        assert over["state"] == "adopted", over
        sitsd.engine(lambda engine: engine["slo"]["gap_ms"] == 400)
        assert sitsd.api.policy()["engines"]["chat"]["slo"]["gap_ms"] == 400
        (event,) = becomes(lambda: sitsd.events("policy"))
        assert event["detail"]["by"] == "canary"
        assert sitsd.metric("sits_policy_canary_ended_total", outcome="adopted") == 1
    assert site.policy.read_text() == new
    assert site.policy.with_name("policy.toml.previous").read_text() == text


def test_an_agent_that_is_killed_meanwhile_comes_back_with_the_old_policy(
    node: Node, site: Site, gap_ms: float
) -> None:
    text = in_control(node, site, gap_ms)
    with busy(node):
        with site.sitsd() as sitsd:
            sitsd.following()
            sitsd.api.policy_try(with_gap(text, 1), "bad.toml", CANARY_S)
            new_turn(sitsd, 1)
            becomes(lambda: knobs(node.engine)["values"]["max_running"] == 1)
            sitsd.kill()
        assert site.policy.read_text() == text
        with site.sitsd() as sitsd:
            assert sitsd.api.policy_status()["canary"] is None
            shown = sitsd.following()
            assert shown["slo"]["gap_ms"] == pytest.approx(2 * gap_ms)
            becomes(lambda: knobs(node.engine)["values"]["max_running"] > 1)
            (lost, *_) = becomes(lambda: sitsd.events("policy_canary"))
            assert lost["detail"]["state"] == "lost"


def test_an_operator_can_end_it_and_another_policy_waits_for_that(
    node: Node, site: Site, gap_ms: float
) -> None:
    text = in_control(node, site, gap_ms)
    with site.sitsd() as sitsd, busy(node):
        sitsd.following()
        sitsd.api.policy_try(with_gap(text, 1), "bad.toml", CANARY_S)
        with pytest.raises(RefusedError, match=r"bad\.toml is on trial; `sitsctl policy abort`"):
            sitsd.api.policy_apply(with_gap(text, 90), "other.toml")
        new_turn(sitsd, 1)
        answer = sitsd.api.policy_abort("test")
        assert (answer["canary"]["state"], answer["canary"]["reason"]) == ("aborted", "test")
        sitsd.engine(lambda engine: engine["slo"]["gap_ms"] == pytest.approx(2 * gap_ms))
        sitsd.api.policy_try(with_gap(text, 1), "bad.toml", CANARY_S)
        sitsd.api.set_mode("shadow", "test")
        becomes(lambda: canary(sitsd)["state"] == "aborted")
        assert canary(sitsd)["reason"] == "an operator set mode shadow"
        sitsd.status(lambda status: status["mode"] == "shadow")
        becomes(lambda: at_start(node.engine))
    assert site.policy.read_text() == text


def test_with_several_engines_one_tries_it_and_the_others_keep_theirs(
    node: Node, site: Site, gap_ms: float, tmp_path: Path
) -> None:
    other = node.neighbours[0]
    with engine_in(other, tmp_path) as second:
        site.write(
            f"""
[engines.chat]
cgroup = "/{node.group.cpu.name}"
admin_socket = "{node.engine.admin}"
slo = {{ gap_ms = {2 * gap_ms} }}
[engines.code]
cgroup = "/{other.cpu.name}"
admin_socket = "{second.admin}"
slo = {{ gap_ms = {2 * gap_ms} }}
""",
            "control",
        )
        new = site.policy.read_text().replace(f"gap_ms = {2 * gap_ms}", "gap_ms = 1")
        with site.sitsd() as sitsd, load(node.engine), load(second, clients=1):
            sitsd.status(
                lambda status: all(e["admin"]["state"] == "connected" for e in status["engines"])
            )
            sitsd.api.policy_try(new, "new.toml", CANARY_S, "code")
            status = sitsd.status(
                lambda status: any(e["slo"]["gap_ms"] == 1 for e in status["engines"])
            )
            slos = {engine["name"]: engine["slo"]["gap_ms"] for engine in status["engines"]}
            assert slos == {"chat": pytest.approx(2 * gap_ms), "code": 1}
            assert canary(sitsd)["engines"] == ["code"]
