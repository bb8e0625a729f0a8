"""Reading the policy file again while something is wrong with it: whole, or not at all."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.agent_view import ApiError
from controller.policy import MAX_POLICY_BYTES, load_policy, parse_policy
from tests.unit.agent.test_client import nobody
from tests.unit.agent.test_policies import BASE, NEW, Desk

WHOLE = NEW + '[neighbours.batch]\ncgroup = "/batch"\nlimit = false\n'


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_loop_of_links(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def in_a_directory_that_is_a_file(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd/policy.toml")


FAULTS: dict[str, Callable[[Path], object]] = {
    "is a directory": a_directory,
    "no such file": lambda file: file.unlink(),
    "too many levels of symbolic links": a_loop_of_links,
    "not a directory": in_a_directory_that_is_a_file,
    "over 1048576 bytes": endless,
    "not UTF-8": lambda file: file.write_bytes(NEW.encode() + b"# \xff\n"),
    "not TOML": lambda file: file.write_bytes(b"\0" * 4096),
    "must be a number": lambda file: file.write_text(NEW.replace("gap_ms = 80", "gap_ms = '80'")),
    "needs a restart": lambda file: file.write_text(NEW + "[agent]\nmax_targets = 7\n"),
}


@pytest.mark.parametrize("why", FAULTS)
@pytest.mark.parametrize("by_signal", [True, False])
def test_a_fault_of_the_file_is_told_and_leaves_the_policy_in_force(
    desk: Desk, why: str, by_signal: bool
) -> None:
    before = desk.policies.policy
    FAULTS[why](desk.file)
    if by_signal:
        desk.main.call(desk.policies.reload_here)
        assert why in desk.policies.problem
        (event,) = desk.events
        assert why in event[2]["refused"]
    else:
        with pytest.raises(ApiError, match=why):
            desk.policies.reload()
        assert desk.events == []
    assert desk.policies.policy is before
    assert desk.enforced == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may nothing")
def test_a_file_that_may_not_be_read_is_told(desk: Desk) -> None:
    with nobody(), pytest.raises(ApiError, match="permission denied"):
        desk.policies.reload()
    assert desk.enforced == []


def test_a_file_of_the_greatest_size_is_read_and_one_byte_more_is_not(desk: Desk) -> None:
    filling = "#" * (MAX_POLICY_BYTES - len(NEW))
    desk.file.write_text(NEW + filling)
    desk.policies.reload()
    assert desk.policies.policy == parse_policy(NEW, "new")
    desk.file.write_text(BASE + "#" * (MAX_POLICY_BYTES - len(BASE) + 1))
    with pytest.raises(ApiError, match="over 1048576 bytes"):
        desk.policies.reload()
    assert desk.policies.policy == parse_policy(NEW, "new")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, len(WHOLE)))
def test_a_half_written_file_is_refused_or_is_what_its_text_says(desk: Desk, cut: int) -> None:
    """A file cut at a line's end can be a policy in itself: then it is that one, and whole."""
    desk.file.write_text(WHOLE[:cut])
    before = desk.policies.policy
    try:
        desk.policies.reload()
    except ApiError:
        assert desk.policies.policy is before
    else:
        assert desk.policies.policy == load_policy(desk.file)


def test_reloads_at_once_each_see_a_whole_file_and_one_policy_is_in_force_at_the_end(
    desk: Desk,
) -> None:
    """Beside a writer that puts either file in place by renaming, as editors and `apply` do."""
    either = {text: parse_policy(text, "either") for text in (BASE, NEW, WHOLE)}
    stop, wrong = threading.Event(), []

    def write() -> None:
        fresh = desk.file.with_name("fresh")
        while not stop.is_set():
            for text in either:
                fresh.write_text(text)
                fresh.replace(desk.file)

    def reload() -> None:
        for _ in range(40):
            try:
                desk.policies.reload()
            except ApiError as error:
                wrong.append(str(error))

    writer = threading.Thread(target=write)
    readers = [threading.Thread(target=reload) for _ in range(4)]
    writer.start()
    for each in readers:
        each.start()
    for each in readers:
        each.join()
    stop.set()
    writer.join()
    assert wrong == []
    assert all(policy in either.values() for policy, _, _ in desk.enforced)
    desk.policies.reload()
    assert desk.policies.policy == load_policy(desk.file)
    # what was enforced last is what is said to be in force
    if desk.enforced:
        assert desk.enforced[-1][0] == desk.policies.policy
