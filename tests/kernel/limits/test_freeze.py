"""Freezes of real processes: by v2's freezer where it is mounted, and by v1's."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller.limits import freezing
from controller.limits.cgroup import CgroupError, Group, Hierarchies
from controller.limits.freezer import Freezer
from controller.limits.freezes import Thawed
from controller.limits.guard import start_guard
from controller.limits.holds import Held
from controller.limits.limiter import Limiter
from controller.limits.places import place_of

from .conftest import Busy, inside

pytestmark = pytest.mark.kernel

SHORT_MS = 1_000
"""Long enough for a busy machine to see it before it is over."""

LONG_MS = 5_000


@pytest.fixture
def group(busy: Busy) -> Group:
    """A group with a process in it, in each hierarchy there is."""
    return busy(["sleep", "600"])


@pytest.fixture
def limiter(tmp_path: Path, one_freezer: Hierarchies) -> Iterator[Limiter]:
    made = Limiter(tmp_path / "undo.json", hierarchies=one_freezer)
    assert made.prepare_to_freeze(wait_ms=30_000)
    yield made
    made.release_all()
    made.close()


@pytest.fixture
def place(group: Group, one_freezer: Hierarchies) -> Group:
    return place_of(one_freezer, group, "freezer")


def becomes(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def freeze(limiter: Limiter, group: Group, place: Group, for_ms: int) -> Held:
    held = limiter.freeze(group, for_ms, "a test")
    assert isinstance(held, Held)
    becomes(lambda: freezing.is_frozen(place))
    return held


def wait_thawed(limiter: Limiter) -> Thawed:
    seen: list[Thawed] = []

    def over() -> bool:
        seen.extend(limiter.thawed())
        return bool(seen)

    becomes(over)
    return seen[0]


def test_a_freeze_stops_the_processes_and_ends_by_itself(
    limiter: Limiter, group: Group, place: Group, tmp_path: Path
) -> None:
    held = freeze(limiter, group, place, SHORT_MS)
    assert limiter.held() == (held,)
    thawed = wait_thawed(limiter)
    assert (thawed.held, thawed.complete, thawed.in_time) == (held, True, True)
    assert not freezing.is_frozen(place)
    assert limiter.held() == ()
    assert not (tmp_path / "undo.json").exists()
    assert limiter.check() == ()


def test_asking_again_does_not_make_a_freeze_longer(
    limiter: Limiter, group: Group, place: Group
) -> None:
    held = freeze(limiter, group, place, SHORT_MS)
    assert limiter.freeze(group, LONG_MS, "longer") == held
    assert wait_thawed(limiter).held == held


def test_a_freeze_is_ended_early_when_asked(limiter: Limiter, group: Group, place: Group) -> None:
    freeze(limiter, group, place, LONG_MS)
    assert len(limiter.thaw(group).unchanged) == 1
    assert not freezing.is_frozen(place)
    assert not wait_thawed(limiter).in_time
    freeze(limiter, group, place, SHORT_MS)
    assert wait_thawed(limiter).in_time


def test_the_release_of_a_group_ends_its_freeze(
    limiter: Limiter, group: Group, place: Group
) -> None:
    freeze(limiter, group, place, LONG_MS)
    limiter.set_weight(group, 50, "a test")
    assert limiter.release(group).complete
    assert not freezing.is_frozen(place)


def test_a_limiter_whose_freezer_was_killed_thaws_at_once_and_starts_another(
    limiter: Limiter, group: Group, place: Group
) -> None:
    freeze(limiter, group, place, LONG_MS)
    kill(limiter.freezer_pid)
    thawed = wait_thawed(limiter)
    assert (thawed.in_time, thawed.frozen_ns < LONG_MS * 1e6) == (False, True)
    assert not freezing.is_frozen(place)
    with pytest.raises(CgroupError, match="the freezer is being started"):
        limiter.freeze(group, 100, "a test")
    becomes(limiter.prepare_to_freeze)
    freeze(limiter, group, place, SHORT_MS)
    assert wait_thawed(limiter).in_time


def test_a_freezer_that_is_stopped_is_replaced_and_what_it_froze_is_thawed(
    limiter: Limiter, group: Group, place: Group
) -> None:
    freeze(limiter, group, place, SHORT_MS)
    assert limiter.freezer_pid is not None
    os.kill(limiter.freezer_pid, signal.SIGSTOP)
    assert not wait_thawed(limiter).in_time
    assert not freezing.is_frozen(place)
    with pytest.raises(CgroupError, match="no answer from the freezer"):
        limiter.freeze(group, 100, "a test")
    assert not freezing.is_frozen(place)
    assert limiter.held() == ()


def test_the_freezer_thaws_when_its_client_is_gone(
    limiter: Limiter, group: Group, place: Group
) -> None:
    freeze(limiter, group, place, LONG_MS)
    limiter.close()
    assert not freezing.is_frozen(place)


def test_a_freezer_that_fails_thaws_before_it_ends(group: Group, place: Group) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    change = freezing.freeze_change(place)
    now_ns = time.monotonic_ns()
    request = {
        "do": "freeze",
        "file": str(change.file),
        "cgroup_id": place.cgroup_id,
        "begin_by_ns": now_ns + 10**11,
        "until_ns": now_ns + 10**11,
    }
    with ours, theirs:
        ours.send(json.dumps(request).encode())
        ours.send(b"not a request")
        with pytest.raises(ValueError, match="Expecting value"):
            Freezer(theirs).serve()
        assert "began_ns" in json.loads(ours.recv(4096))
        assert "thawed_ns" in json.loads(ours.recv(4096))
    assert not freezing.is_frozen(place)


def test_a_cgroup_that_is_renamed_while_frozen_is_thawed(
    limiter: Limiter, group: Group, place: Group
) -> None:
    if place.version == 2:
        pytest.skip("v2 cannot rename a cgroup")
    freeze(limiter, group, place, SHORT_MS)
    other = place.directory.with_name(f"{place.directory.name}-other")
    place.directory.rename(other)
    try:
        becomes(lambda: (other / "freezer.state").read_text() == "THAWED\n")
    finally:
        other.rename(place.directory)


def test_the_guard_thaws_what_a_dead_freezer_and_a_silent_limiter_left(
    group: Group, place: Group, one_freezer: Hierarchies, tmp_path: Path
) -> None:
    guard, write_fd = start_guard(tmp_path / "undo.json", 600_000)
    limiter = Limiter(tmp_path / "undo.json", write_fd, hierarchies=one_freezer)
    with guard:
        try:
            assert limiter.prepare_to_freeze(wait_ms=30_000)
            held = freeze(limiter, group, place, SHORT_MS)
            kill(limiter.freezer_pid)
            becomes(lambda: not freezing.is_frozen(place))
            assert held.until_ns is not None
            assert time.monotonic_ns() > held.until_ns
        finally:
            limiter.release_all()
            limiter.close()
            os.close(write_fd)
    assert guard.returncode == 0


def test_nothing_is_frozen_without_a_guard(
    group: Group, place: Group, one_freezer: Hierarchies, tmp_path: Path
) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    limiter = Limiter(tmp_path / "undo.json", write_fd, hierarchies=one_freezer)
    assert limiter.prepare_to_freeze(wait_ms=30_000)
    with pytest.raises(CgroupError, match="the guard does not listen"):
        limiter.freeze(group, 500, "a test")
    assert not freezing.is_frozen(place)
    assert not (tmp_path / "undo.json").exists()
    limiter.close()
    os.close(write_fd)


def test_what_somebody_else_froze_is_left_alone(
    limiter: Limiter, group: Group, place: Group
) -> None:
    change = freezing.freeze_change(place)
    change.file.write_text(change.text)
    with pytest.raises(CgroupError, match="somebody else has frozen the group"):
        limiter.freeze(group, 100, "a test")
    assert limiter.held() == ()
    becomes(lambda: freezing.is_frozen(place))
    change.file.write_text(freezing.THAWED[change.file.name])


def test_what_somebody_else_thaws_is_over(limiter: Limiter, group: Group, place: Group) -> None:
    freeze(limiter, group, place, LONG_MS)
    file = freezing.freeze_change(place).file
    file.write_text(freezing.THAWED[file.name])
    assert limiter.check() == ()
    assert limiter.held() == ()
    assert not wait_thawed(limiter).in_time


def test_a_group_that_vanishes_while_frozen_is_over(
    limiter: Limiter, busy: Busy, one_freezer: Hierarchies, tmp_path: Path
) -> None:
    empty = busy(["true"])
    place = place_of(one_freezer, empty, "freezer")
    assert isinstance(limiter.freeze(empty, 200, "a test"), Held)
    with suppress(OSError):
        place.directory.rmdir()
    wait_thawed(limiter)
    assert limiter.held() == ()
    assert not (tmp_path / "undo.json").exists()


def test_no_group_that_we_are_in_is_frozen(
    limiter: Limiter, group: Group, place: Group, one_freezer: Hierarchies
) -> None:
    with (
        inside(group, one_freezer),
        pytest.raises(CgroupError, match="the agent is in cgroup"),
    ):
        limiter.freeze(group, 100, "a test")
    assert not freezing.is_frozen(place)


def test_a_group_with_other_processes_than_those_that_were_named_is_not_frozen(
    limiter: Limiter, group: Group, place: Group
) -> None:
    if place.directory == group.directory:
        pytest.skip("with one hierarchy there can't be others")
    with subprocess.Popen(["sleep", "600"]) as stranger:
        (place.directory / "cgroup.procs").write_text(str(stranger.pid))
        try:
            with pytest.raises(CgroupError, match="has other processes than"):
                limiter.freeze(group, 100, "a test")
        finally:
            stranger.kill()
    assert not freezing.is_frozen(place)


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
