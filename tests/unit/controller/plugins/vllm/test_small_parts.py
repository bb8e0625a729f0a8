from pathlib import Path

import pytest

from controller.plugins.vllm.arrivals import arrival_ns
from controller.plugins.vllm.places import admin_gid, page_path, socket_path
from controller.plugins.vllm.stuck import AFTER_NS, Sight, StuckWatch

S = 1_000_000_000
STUCK = Sight(waiting=3, running=2, cap=8, free_share=0.9, prefilling=False)


def test_an_arrival_is_as_long_ago_on_the_one_clock_as_on_the_other() -> None:
    assert arrival_ns(arrived_s=99.5, wall_s=100.0, now_ns=7 * S) == 7 * S - S // 2


@pytest.mark.parametrize("arrived_s", [101.0, 30.0], ids=["in the future", "long ago"])
def test_an_arrival_that_a_step_of_the_wall_clock_made_is_now(arrived_s: float) -> None:
    assert arrival_ns(arrived_s, wall_s=100.0, now_ns=7 * S) == 7 * S


def test_nobody_admitted_for_long_although_there_is_room_is_stuck() -> None:
    watch = StuckWatch()
    assert not watch.look(1 * S, STUCK)
    assert not watch.look(S + AFTER_NS - 1, STUCK)
    assert watch.look(S + AFTER_NS, STUCK)


@pytest.mark.parametrize(
    "sight",
    [
        Sight(waiting=0, running=2, cap=8, free_share=0.9, prefilling=False),
        Sight(waiting=3, running=8, cap=8, free_share=0.9, prefilling=False),
        Sight(waiting=3, running=2, cap=8, free_share=0.2, prefilling=False),
        Sight(waiting=3, running=2, cap=8, free_share=0.9, prefilling=True),
    ],
    ids=["nobody waits", "at the cap", "no memory", "the budget goes to a prompt"],
)
def test_with_a_reason_not_to_admit_it_is_not_stuck(sight: Sight) -> None:
    watch = StuckWatch()
    watch.look(0, STUCK)
    assert not watch.look(AFTER_NS // 2, sight)
    assert not watch.look(AFTER_NS, STUCK)


def test_an_admission_begins_the_wait_anew() -> None:
    watch = StuckWatch()
    watch.look(0, STUCK)
    watch.admitted()
    assert not watch.look(AFTER_NS, STUCK)


def test_each_data_parallel_rank_has_its_own_socket_and_page() -> None:
    places = [socket_path({"SITS_ADMIN_SOCKET": "/run/x/a.sock"}, rank) for rank in (0, 1)]
    assert places == [Path("/run/x/a.sock"), Path("/run/x/a-1.sock")]
    assert page_path(places[1]) == Path("/run/x/a-1.page")


def test_the_group_is_a_name_or_a_number() -> None:
    assert admin_gid({}) is None
    assert admin_gid({"SITS_ADMIN_GROUP": "root"}) == 0
    assert admin_gid({"SITS_ADMIN_GROUP": "27"}) == 27
    with pytest.raises(KeyError):
        admin_gid({"SITS_ADMIN_GROUP": "no-such-group"})
