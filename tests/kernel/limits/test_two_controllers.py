"""Another controller at a file that is limited: it has the file within a second, and sits says so.

The files are this machine's: v1's or v2's, whichever hierarchy has the controller.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from controller.limits.cgroup import CgroupError, Group, Hierarchies, cpu_group
from controller.limits.freezing import THAWED
from controller.limits.holds import MOST_TAKEN_BACK, Held

from .conftest import remove
from .turning import SETTERS, Turning, turning, yields_to_a_value, yields_to_the_first_value

pytestmark = pytest.mark.kernel


@pytest.fixture
def loop(hierarchies: Hierarchies, tmp_path: Path) -> Iterator[Turning]:
    """A loop with a neighbour that has a group in every hierarchy; nothing of it is left."""
    path, found = f"/sits-test-{uuid4().hex[:12]}", hierarchies
    mounts = {found.v2, found.v1_cpu, found.v1_memory, found.v1_freezer, found.v1_blkio} - {None}
    directories = [mount.directory(path) for mount in mounts if mount is not None]
    try:
        for directory in directories:
            directory.mkdir()
        with turning(found, cpu_group(found, path), tmp_path / "undo.json") as made:
            yield made
    finally:
        for directory in directories:
            remove(directory)


@pytest.fixture(params=SETTERS)
def kind(request: pytest.FixtureRequest, loop: Turning) -> str:
    """Each limit that can be set here, and is not yet."""
    kind: str = request.param
    try:
        SETTERS[kind](loop.limiter, loop.group)
    except CgroupError as error:
        pytest.skip(f"no such limit on this machine: {error}")
    loop.limiter.release_all()
    return kind


def test_a_value_of_another_controller_is_left_to_it_and_told_within_a_second(
    loop: Turning, kind: str
) -> None:
    file = yields_to_a_value(loop, kind)
    theirs = file.read_text()
    loop.limiter.release_all()
    assert file.read_text() == theirs


def test_one_that_puts_the_first_value_back_again_and_again_has_the_file_too(
    loop: Turning, kind: str
) -> None:
    yields_to_the_first_value(loop, kind, MOST_TAKEN_BACK)


def freeze(loop: Turning, group: Group) -> Held:
    """As the loop does: asked again while the freezer is being started, or was too slow."""
    until = time.monotonic() + 60
    while True:
        assert loop.limiter.prepare_to_freeze(wait_ms=30_000)
        try:
            held = loop.limiter.freeze(group, 5_000, "test")
        except CgroupError:
            assert time.monotonic() < until
        else:
            assert isinstance(held, Held)
            return held


def test_whoever_thaws_has_thawed(loop: Turning) -> None:
    held = freeze(loop, loop.group)
    held.file.write_text(THAWED[held.file.name])
    loop.turn(1)
    assert loop.limiter.held() == ()
    assert held.file.read_text().strip() == THAWED[held.file.name]
