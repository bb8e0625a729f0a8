"""The plug-in in vLLM's own scheduler, in situations that a served model does not come into.

All in one process of vLLM's environment (`inside/scenarios.py`), since it takes long to start.
"""

import os
from typing import Any

import pytest

from tests.engines.vllm.inside_run import run_inside

pytestmark = pytest.mark.engines

IN_ITS_OWN_MOUNTS = """
set -e
mount -t tmpfs -o ro none "$READ_ONLY"
mount -t tmpfs -o size=4096 none "$FULL"
head -c 4096 /dev/zero >"$FULL/filler"
exec "$@"
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("mounting a full disk needs root")
    directory = tmp_path_factory.mktemp("inside")
    places = {"READ_ONLY": directory / "read-only", "FULL": directory / "full"}
    for place in places.values():
        place.mkdir()
    scenarios: dict[str, Any] = run_inside(
        "scenarios.py",
        directory,
        before=("unshare", "--mount", "sh", "-c", IN_ITS_OWN_MOUNTS, "sh"),
        environment={name: str(place) for name, place in places.items()},
    )
    return scenarios


@pytest.mark.parametrize(
    ("scenario", "base"), [("plain_flavour", "Scheduler"), ("ahead_flavour", "AsyncScheduler")]
)
def test_it_extends_the_flavour_that_vllm_would_use_and_accounts_for_all(
    seen: dict[str, Any], scenario: str, base: str
) -> None:
    found = seen[scenario]
    page = found["page"]
    assert found["base"] == base
    assert found["finished"] == page["finished_total"] == 38
    assert page["requests_total"] == 40
    assert page["deferred_total"] > 0
    for figure in ("waiting", "running", "waiting_tokens", "on_time_tokens", "kv_used", "deferred"):
        assert page[figure] == 0, figure
    # those that ended by themselves have 20 tokens each, the two that were aborted at most 20
    assert 38 * 20 <= page["generated_tokens_total"] <= 40 * 20
    assert not found["left"], "a scheduler that was shut down left its socket"


def test_a_change_waits_for_the_step_under_way_and_for_nothing_else(seen: dict[str, Any]) -> None:
    assert seen["in_force"] == {
        "idle": "applied",
        "under_way": "pending",
        "budget_under_way": 2048,
        "after": "applied",
        "cap_after": 4,
        "budget_after": 512,
    }


def test_a_queue_in_the_order_of_priorities_is_left_alone(seen: dict[str, Any]) -> None:
    assert seen["priorities"] == {
        "knobs": ["long_prefill_tokens", "max_batched_tokens", "max_running"],
        "finished": 1,
    }


def test_preempted_requests_are_counted_and_leave_no_tokens_behind(seen: dict[str, Any]) -> None:
    page = seen["preemption"]["page"]
    assert seen["preemption"]["finished"] == 12
    assert page["preemptions_total"] > 0
    assert page["generated_tokens_total"] == 12 * 100
    assert (page["waiting_tokens"], page["kv_used"]) == (0, 0)


def test_when_it_fails_vllm_goes_on_and_who_asks_is_told(seen: dict[str, Any]) -> None:
    found = seen["failure"]
    assert (found["finished"], found["cap"]) == (6, 64)
    assert found["values"], "the knobs are not back at the start"
    assert found["owner"] is None
    assert found["refused"]["code"] == "failed"
    assert "the plug-in failed" in found["refused"]["message"]


def test_when_the_order_fails_in_the_middle_of_a_plan_nobody_is_lost(seen: dict[str, Any]) -> None:
    found = seen["failing_order"]
    assert sorted(found["finished"]) == [f"r{number}" for number in range(6)]
    assert found["refused"] == "failed"


def test_a_cap_under_which_nobody_is_admitted_any_more_is_lifted(seen: dict[str, Any]) -> None:
    found = seen["stuck"]
    assert (found["finished"], found["cap"], found["owner"]) == (1, 64, None)


def test_each_rank_has_its_own_socket_and_page(seen: dict[str, Any]) -> None:
    assert seen["ranks"] == {
        "made": ["admin-1.page", "admin-1.sock", "admin.page", "admin.sock"],
        "pages": ["admin.page", "admin-1.page"],
        "left": [],
    }


def test_the_sizes_of_captured_graphs_are_told(seen: dict[str, Any]) -> None:
    assert seen["graphs"] == {"sizes": [1, 2, 4, 8]}


def test_without_a_place_for_its_socket_vllm_serves_without_it(seen: dict[str, Any]) -> None:
    assert seen["nowhere"] == {
        name: {"finished": 5, "there": False} for name in ("no directory", "read only", "no group")
    }


def test_on_a_full_disk_it_serves_without_a_page(seen: dict[str, Any]) -> None:
    assert seen["full_disk"] == {"finished": 5, "page": None, "cap": 2, "shown": 5}
