"""A change over several real engines, and its coordinator killed at every point of it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.wire import Message
from tests.leases import renewed

from .coordinator import PATIENCE_S, Fleet, fleet
from .reference_process import reference_engine

WANTED = 7
LONGER_S = (2, 20, 200)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, 3) as made:
        yield made


def is_change(message: Message, stage: str) -> bool:
    return bool(message["type"] == "change" and message["stage"] == stage)


def becomes(fleet: Fleet, expected: list[float]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := fleet.values("max_running")) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def start_value(fleet: Fleet) -> float:
    return float(fleet.state("e0")["start"]["max_running"])


def test_it_is_made_everywhere_and_ends_with_its_time(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    for change_id, lease_s in enumerate(LONGER_S, 1):
        began_s = time.monotonic()
        three.ask(change_id, lease_s=lease_s, max_running=WANTED)
        result, values = three.result(change_id), three.values("max_running")
        # a machine so slow that it may have ended before that look is given more time
        if time.monotonic() - began_s < lease_s:
            break
    assert result["state"] == "applied"
    assert {each["standing"] for each in result["engines"].values()} == {"committed"}
    assert values == [WANTED] * 3
    three.until(lambda m: is_change(m, "over") and m["id"] == change_id)
    becomes(three, [start] * 3)
    assert three.journal.open_changes() == []


def test_one_of_three_that_can_not_is_left_behind(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    with renewed(three.engines["e2"].admin, "other"):
        three.ask(1, max_running=WANTED)
        result = three.result(1)
    assert result["state"] == "applied"
    assert result["engines"]["e2"]["standing"] == "refused"
    assert three.values("max_running") == [WANTED, WANTED, start]


def test_when_two_of_three_can_not_nothing_is_changed_anywhere(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    with ExitStack() as others:
        for name in ("e1", "e2"):
            others.enter_context(renewed(three.engines[name].admin, "other"))
        three.ask(1, max_running=WANTED)
        result = three.result(1)
    assert result["state"] == "aborted"
    assert result["why"] == "1 of 3 could prepare it, 2 had to"
    assert three.values("max_running") == [start] * 3
    assert three.state("e0")["prepared_epoch"] is None


def test_an_engine_killed_before_the_commit_is_reported_and_the_others_have_it(
    three: Fleet,
) -> None:
    three.start()
    three.ask(1, max_running=WANTED)
    decided = three.until(
        lambda m: is_change(m, "committing"), journal=lambda m: m["stage"] != "committing"
    )
    three.engines["e1"].process.kill()
    three.engines["e1"].process.wait()
    three.keep(decided)
    result = three.result(1)
    assert result["state"] == "applied"
    assert result["engines"]["e1"]["standing"] == "lost"
    assert three.values("max_running") == [WANTED] * 2


def test_a_change_that_can_not_be_journalled_changes_nothing(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    three.ask(1, max_running=WANTED)
    asked = three.until(lambda m: is_change(m, "preparing"), journal=lambda _: False)
    assert three.agent is not None
    three.agent.channel.send(
        {"type": "recorded", "id": asked["id"], "stage": "preparing", "error": "no room"}
    )
    assert three.result(1)["state"] == "aborted"
    assert three.values("max_running") == [start] * 3


@pytest.mark.parametrize("kept", [False, True], ids=["before the journal", "after the journal"])
def test_killed_before_the_decision_nothing_is_changed(three: Fleet, kept: bool) -> None:
    start = start_value(three)
    three.start()
    three.ask(1, max_running=WANTED)
    three.until(lambda m: is_change(m, "preparing"), journal=lambda _: kept)
    if kept:
        # all have promised, and the decision is on its way to the journal, which never has it
        three.until(lambda m: is_change(m, "committing"), journal=lambda _: False)
    three.kill()
    assert three.values("max_running") == [start] * 3
    three.start()
    if kept:
        three.hears(lambda m: is_change(m, "over"))
    assert three.values("max_running") == [start] * 3
    assert [three.state(name)["prepared_epoch"] for name in three.engines] == [None] * 3
    assert three.journal.open_changes() == []


@pytest.mark.parametrize("after_ms", [0, 1, 2, 4, 8, 50, 400])
def test_killed_after_the_decision_the_next_one_makes_it_whole(three: Fleet, after_ms: int) -> None:
    three.start()
    three.ask(1, max_running=WANTED)
    three.until(lambda m: is_change(m, "committing"))
    time.sleep(after_ms / 1e3)
    three.kill()
    three.start()
    becomes(three, [WANTED] * 3)
    assert three.result(1)["state"] == "applied"
    owners = [three.state(name)["owner"] for name in three.engines]
    assert owners == ["sits"] * 3


def test_killed_and_never_followed_the_engines_bring_it_back_themselves(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    three.ask(1, lease_s=1, max_running=WANTED)
    assert three.result(1)["state"] == "applied"
    three.kill()
    becomes(three, [start] * 3)


def test_an_engine_started_anew_meanwhile_is_left_as_it_started(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    three.ask(1, max_running=WANTED)
    three.until(lambda m: is_change(m, "committing"))
    three.kill()
    old = three.engines["e0"]
    old.process.kill()
    old.process.wait()
    with reference_engine(admin=old.admin) as anew:
        three.engines["e0"] = anew
        three.start()
        becomes(three, [start, WANTED, WANTED])
        assert three.result(1)["engines"]["e0"]["standing"] == "lost"
        three.clean()


def test_all_ranks_of_an_engine_change_together_and_over_a_crash(tmp_path: Path) -> None:
    with fleet(tmp_path, 3, ranks=True) as ranks:
        ranks.start()
        ranks.ask(1, max_running=WANTED)
        result = ranks.result(1)
        assert set(result["engines"]) == {f"all/e{n}.sock" for n in range(3)}
        assert ranks.values("max_running") == [WANTED] * 3
        ranks.kill()
        ranks.start()
        becomes(ranks, [WANTED] * 3)
        assert ranks.result(1)["state"] == "applied"


def test_a_second_change_takes_the_place_of_the_first_and_outlives_it(three: Fleet) -> None:
    start = start_value(three)
    three.start()
    three.ask(1, lease_s=2, max_running=WANTED, max_queued=50)
    assert three.result(1)["state"] == "applied"
    three.ask(2, lease_s=60, max_running=WANTED + 1)
    assert three.result(2)["state"] == "applied"
    three.hears(lambda m: is_change(m, "over") and m["id"] == 1)
    # longer than the first one was for
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        three.until(lambda m: m["type"] == "status")
    assert three.values("max_running") == [WANTED + 1] * 3
    # what the second does not name is as it was started
    assert three.state("e0")["values"]["max_queued"] == three.state("e0")["start"]["max_queued"]
    assert three.agent is not None
    three.agent.channel.send({"type": "hand_back", "id": 3, "engines": [], "reason": "enough"})
    three.until(lambda m: m["type"] == "handed_back")
    becomes(three, [start] * 3)


def test_where_too_few_can_be_reached_nothing_is_left_promised(three: Fleet) -> None:
    three.start()
    for name in ("e0", "e1"):
        three.engines[name].process.kill()
        three.engines[name].process.wait()
    three.until(
        lambda m: (
            m["type"] == "status"
            and [m["engines"][name]["admin"]["state"] for name in ("e0", "e1")]
            == ["unreachable"] * 2
        )
    )
    three.ask(1, max_running=WANTED)
    result = three.result(1)
    assert result["state"] == "aborted"
    assert "unreachable" in result["engines"]["e0"]["detail"]
    assert three.state("e2")["prepared_epoch"] is None
