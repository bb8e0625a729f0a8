from pathlib import Path

import pytest

from controller.limits import cgroup, cpu
from controller.limits.cgroup import Group
from controller.limits.holds import Held, Lapsed
from controller.limits.limiter import Limiter
from controller.limits.undo import Foreign, run_undo

from .conftest import MakeGroup

pytestmark = pytest.mark.kernel


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "undo.json"


@pytest.fixture
def parent_and_child(make_group: MakeGroup) -> tuple[Group, Group]:
    """Both with a quota, so that under v1 each order of changes but one is refused."""
    parent, child = make_group("engine"), make_group("engine/worker")
    cpu.write_quota(parent, 1.0)
    cpu.write_quota(child, 0.5)
    return parent, child


def test_two_files_of_a_group_go_back_after_several_changes(
    make_group: MakeGroup, path: Path
) -> None:
    group, limiter = make_group("engine"), Limiter(path)
    cpu.write_weight(group, 250)
    for weight, cores in [(500, 0.5), (10_000, 0.02), (1, None)]:
        assert isinstance(limiter.set_weight(group, weight, "one"), Held)
        assert isinstance(limiter.set_quota(group, cores, "two"), Held)
    assert len(run_undo(path).restored) == 1
    assert (cpu.read_weight(group), cpu.read_quota(group)) == (250, None)


@pytest.mark.parametrize("how", ["undo", "release"])
@pytest.mark.parametrize("weights", [[0], [0, 500], [500, 0], [0, 500, 0]])
def test_an_idle_group_gets_its_weight_back(
    idling: Group, path: Path, weights: list[int], how: str
) -> None:
    limiter = Limiter(path)
    for weight in weights:
        assert isinstance(limiter.set_weight(idling, weight, "idle"), Held)
        assert limiter.check() == ()
    report = run_undo(path) if how == "undo" else limiter.release_all()
    assert len(report.restored) == 1
    assert cpu.read_weight(idling) == 250


def test_an_idle_group_that_was_woken_and_not_yet_given_its_weight_gets_it(
    idling: Group, path: Path
) -> None:
    """As by an undo that was killed in between: the kernel gives who wakes the default weight."""
    Limiter(path).set_weight(idling, 0, "idle")
    cgroup.write(idling.directory / "cpu.idle", "0")
    assert len(run_undo(path).restored) == 1
    assert cpu.read_weight(idling) == 250


def test_an_idle_group_that_somebody_wakes_is_left_to_him(idling: Group, path: Path) -> None:
    limiter = Limiter(path)
    limiter.set_weight(idling, 0, "idle")
    cgroup.write(idling.directory / "cpu.idle", "0")
    cpu.write_weight(idling, 77)
    (noticed,) = limiter.check()
    assert isinstance(noticed, Foreign)
    assert isinstance(limiter.set_weight(idling, 0, "again"), Foreign)
    assert limiter.release_all().restored == ()
    assert cpu.read_weight(idling) == 77


@pytest.mark.parametrize("how", ["undo", "release"])
def test_quotas_of_parent_and_child_go_back_whichever_was_set_first(
    parent_and_child: tuple[Group, Group], path: Path, how: str
) -> None:
    parent, child = parent_and_child
    limiter = Limiter(path)
    for group, cores in [(parent, 2.0), (child, 0.2), (parent, 0.3)]:
        limiter.set_quota(group, cores, "in an order that undone backwards is refused by v1")
    report = run_undo(path) if how == "undo" else limiter.release_all()
    assert report.complete
    assert (cpu.read_quota(parent), cpu.read_quota(child)) == (1.0, 0.5)


def test_a_child_that_cannot_be_released_before_its_parent_stays_held(
    parent_and_child: tuple[Group, Group], path: Path
) -> None:
    parent, child = parent_and_child
    if parent.version != 1:
        pytest.skip("only cgroup v1 refuses this; the cpu controller is v2 here")
    limiter = Limiter(path)
    limiter.set_quota(child, 0.2, "one")
    limiter.set_quota(parent, 0.3, "two")
    report = limiter.release(child)
    assert "has 0.3 cores, not 0.5" in report.kept[0].why
    assert [held.group for held in limiter.held()] == [child, parent]
    limiter.release(parent)
    assert limiter.release(child).complete
    assert cpu.read_quota(child) == 0.5


def test_a_refused_quota_leaves_no_trace(parent_and_child: tuple[Group, Group], path: Path) -> None:
    parent, child = parent_and_child
    if parent.version != 1:
        pytest.skip("only cgroup v1 refuses this; the cpu controller is v2 here")
    limiter = Limiter(path)
    with pytest.raises(cgroup.CgroupError, match="no more than its parent"):
        limiter.set_quota(child, 1.5, "too much")
    assert limiter.held() == ()
    assert not path.exists()
    assert cpu.read_quota(child) == 0.5


def test_a_group_removed_and_made_again_is_not_mistaken_for_the_limited_one(
    make_group: MakeGroup, path: Path
) -> None:
    group, limiter = make_group("engine"), Limiter(path)
    limiter.set_weight(group, 500, "one")
    group.directory.rmdir()
    again = make_group("engine")
    cpu.write_weight(again, 500)
    assert len(run_undo(path).vanished) == 1
    assert cpu.read_weight(again) == 500


def test_a_group_removed_and_made_again_is_limited_from_its_own_original(
    make_group: MakeGroup, path: Path
) -> None:
    group, limiter = make_group("engine"), Limiter(path)
    limiter.set_weight(group, 500, "one")
    group.directory.rmdir()
    again = make_group("engine")
    cpu.write_weight(again, 77)
    assert isinstance(limiter.set_weight(again, 600, "two"), Held)
    assert len(run_undo(path).restored) == 1
    assert cpu.read_weight(again) == 77


def test_a_vanished_group_lapses(make_group: MakeGroup, path: Path) -> None:
    group, limiter = make_group("engine"), Limiter(path)
    held = limiter.set_weight(group, 500, "one")
    group.directory.rmdir()
    with pytest.raises(cgroup.CgroupGoneError):
        limiter.set_weight(group, 600, "two")
    assert isinstance(held, Held)
    assert limiter.check() == (Lapsed(held),)
    assert not path.exists()
