"""An engine of two ranks, each with a scheduler and an admin socket of its own."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engines.reference_process import Running

from .conftest import Node
from .groups import favoured
from .rig import Site, Sitsd
from .test_knobs import NO_NEIGHBOURS, lowered
from .traffic import at_start, engine_in, knobs, long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel


@pytest.fixture
def second(node: Node) -> Iterator[Running]:
    """Another rank beside the node's engine."""
    admin = node.engine.admin.with_name("engine-1.sock")
    page = node.engine.page.with_name("engine-1.page")
    paths = ("--admin-socket", str(admin), "--page", str(page))
    with engine_in(node.group, admin.parent, *paths) as engine:
        yield replace(engine, admin=admin, page=page)
    admin.unlink()


def targets(node: Node, gap_ms: float) -> str:
    """The policy's tables, with a pattern for the sockets of both."""
    text = node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS)
    return text.replace(str(node.engine.admin), str(node.engine.admin.with_name("engine*.sock")))


def both(sitsd: Sitsd) -> None:
    sitsd.engine(
        lambda engine: [each["state"] for each in engine["admin_sockets"]] == ["connected"] * 2
    )


def test_a_rank_whose_batch_is_too_large_is_retuned_and_none_is_cut_for_another(
    node: Node, second: Running, site: Site, gap_ms: float
) -> None:
    site.write(targets(node, gap_ms), "control")
    with site.sitsd() as sitsd:
        both(sitsd)
        with favoured(node.group), long_beside_short(second):
            becomes(lambda: lowered(replace(node, engine=second)))
            # a rank may be given the point of its own step model, learnt of the steps on its page
            others = [d for d in sitsd.decisions() if "chat/engine.sock" in str(d["action"])]
            assert all("not yet trusted" not in d["reason"] for d in others)
            sitsd.api.set_mode("observe", "test")
            becomes(lambda: at_start(second) and at_start(node.engine))


def test_what_is_set_by_hand_is_set_on_both_ranks(node: Node, second: Running, site: Site) -> None:
    site.write(targets(node, 30_000))
    with site.sitsd() as sitsd:
        both(sitsd)
        answer = sitsd.api.set_knobs({"max_running": 7}, reason="a test")
        assert answer["state"] == "applied"
        assert set(answer["engines"]) == {"chat/engine.sock", "chat/engine-1.sock"}
        assert [knobs(each)["values"]["max_running"] for each in (node.engine, second)] == [7, 7]
        sitsd.api.release()
        becomes(lambda: at_start(node.engine) and at_start(second))
