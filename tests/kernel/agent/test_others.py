"""Others at the same knobs, and an engine that comes back smaller: sits yields, and goes on."""

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from controller.engines.client import EngineError, call
from controller.engines.link import OWNER
from tests.engines.reference_process import Running
from tests.kernel.conftest import MakeGroup
from tests.leases import renewed, take

from .conftest import Node
from .groups import favoured
from .rig import Site, Sitsd
from .test_knobs import NO_NEIGHBOURS, lowered
from .traffic import LONG_PROMPT, at_start, engine_in, knobs, load, long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel

OPERATOR: Final = "operator"


def takes_from_sits(engine: Running, **values: int) -> bool:
    """Whether an operator who ends sits' lease in its name got his own before sits was back."""
    with suppress(EngineError):
        call(engine.admin, "release", 10, owner=OWNER)
        take(engine.admin, OPERATOR, **values)
        return True
    return False


def takes_its_name(engine: Running, **values: int) -> bool:
    """Whether a `set` in sits' name came before sits' own next one, which takes the epoch."""
    with suppress(EngineError):
        take(engine.admin, OWNER, **values)
        return True
    return False


def yields(sitsd: Sitsd, kind: str, why: str) -> dict[str, Any]:
    """Wait until it says so everywhere; the event."""
    engine = sitsd.engine(lambda engine: engine["admin"]["state"] == "held")
    assert why in engine["admin"]["detail"]
    assert any(why in each for each in sitsd.api.status()["problems"])
    assert sitsd.metric("sits_engine_admin_connected", engine="chat") == 0
    event: dict[str, Any] = becomes(lambda: sitsd.events(kind))[0]
    assert event["subject"] == "chat"
    assert why in event["detail"]["detail"]
    return event


def asked_since(sitsd: Sitsd, started_ns: int) -> list[dict[str, Any]]:
    """The knobs that decisions since then have set, once one of them is in force."""
    since = [each for each in sitsd.decisions() if each["mono_ns"] > started_ns]
    if "applied" not in {each["ack"] for each in since}:
        return []
    changes = [change for each in since for change in each["action"]]
    return [each for each in changes if each["kind"] == "knob" and each["to"] != "start"]


def test_a_lease_that_another_holds_is_waited_for(node: Node, site: Site, gap_ms: float) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    take(node.engine.admin, OPERATOR, max_running=7)
    with site.sitsd() as sitsd:
        sitsd.engine(lambda engine: engine["found"] and engine["ports"])
        take(node.engine.admin, OPERATOR, max_running=7)
        try:
            with favoured(node.group), long_beside_short(node.engine):
                yields(sitsd, "lease_held", "held by 'operator'")
                assert knobs(node.engine)["values"]["max_running"] == 7
                becomes(lambda: [d for d in sitsd.decisions() if d["ack"] == "refused"])
                call(node.engine.admin, "release", 10, owner=OPERATOR)
                becomes(lambda: lowered(node))
                sitsd.engine(lambda engine: engine["admin"]["state"] == "connected")
        finally:
            with suppress(EngineError):  # sits' again, where all went well
                call(node.engine.admin, "release", 10, owner=OPERATOR)
    assert at_start(node.engine)


def test_an_operator_who_takes_the_knobs_has_them_until_he_lets_go(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: lowered(node))
            becomes(lambda: takes_from_sits(node.engine, max_batched_tokens=777))
            yields(sitsd, "lease_held", "held by 'operator'")
            assert knobs(node.engine)["values"]["max_batched_tokens"] == 777
            assert knobs(node.engine)["owner"] == OPERATOR
            call(node.engine.admin, "release", 10, owner=OPERATOR)
            becomes(lambda: lowered(node))
            assert sitsd.metric("sits_knob_changes_total", engine="chat", knob="max_batched_tokens")
            assert sitsd.api.status()["controller"]["restarts"] == 0
    assert at_start(node.engine)


def test_what_is_set_in_its_name_is_left_alone(node: Node, site: Site, gap_ms: float) -> None:
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: lowered(node))
            becomes(lambda: takes_its_name(node.engine, max_running=5))
            with renewed(node.engine.admin, OWNER, max_running=5):
                yields(sitsd, "foreign_write", "")
                assert knobs(node.engine)["values"]["max_running"] == 5
                assert sitsd.events("engine_lost") == []
    # the lease that was taken by hand is not sits' to give back: it runs out
    becomes(lambda: at_start(node.engine))


def test_an_engine_killed_and_started_with_less_is_controlled_again_within_it(
    make_cgroup: MakeGroup, node: Node, site: Site, gap_ms: float, tmp_path: Path
) -> None:
    group = make_cgroup("smaller")
    with ExitStack() as stack:
        first = stack.enter_context(engine_in(group, tmp_path))
        here = Node(first, group, node.neighbours)
        site.write(here.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
        sitsd = stack.enter_context(site.sitsd())
        sitsd.following()
        stack.enter_context(favoured(group))
        with (
            load(first, clients=2, max_tokens=64),
            load(first, clients=1, max_tokens=1, prompt=LONG_PROMPT, pause_s=0.4),
        ):
            becomes(lambda: lowered(here))
            first.process.kill()
            first.process.wait()
        less = ("--max-running", "8", "--max-batched-tokens", "1024")
        started_ns = time.monotonic_ns()
        second = stack.enter_context(engine_in(group, tmp_path, *less))
        here = Node(second, group, node.neighbours)
        with long_beside_short(second):
            becomes(lambda: lowered(here))
            assert knobs(second)["start"]["max_batched_tokens"] == 1024
            asked = becomes(lambda: asked_since(sitsd, started_ns))
        assert all(
            change["to"] <= {"max_running": 8, "max_batched_tokens": 1024}.get(change["knob"], 1e9)
            for change in asked
        )
        assert sitsd.events("set_refused") == []
        assert "refused" not in {each["ack"] for each in sitsd.decisions()}
        assert sitsd.api.status()["controller"]["restarts"] == 0
