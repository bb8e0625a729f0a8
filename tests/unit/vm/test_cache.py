from pathlib import Path

import pytest

from tests.vm.rig import cache
from tests.vm.rig.command import RigError


def make(into: Path) -> None:
    """Build the entry that the tests ask for."""
    (into / "made").touch()


def fail(into: Path) -> None:
    """Fail half-way through a build."""
    (into / "half").touch()
    raise RigError("half-way")


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    with cache.hold(tmp_path) as held:
        assert (held.build("kind/name", make) / "made").exists()
        assert (held.build("kind/name", fail) / "made").exists()


def test_an_entry_outlives_the_run(tmp_path: Path) -> None:
    with cache.hold(tmp_path) as held:
        held.build("kind/name", make)
    with cache.hold(tmp_path) as held:
        assert (held.build("kind/name", fail) / "made").exists()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="half-way"), cache.hold(tmp_path) as held:
        held.build("kind/name", fail)
    assert [path.name for path in tmp_path.rglob("*")] == ["lock"]


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "work/left").mkdir(parents=True)
    with cache.hold(tmp_path) as held:
        assert list(held.work.iterdir()) == []


def test_only_one_run_holds_the_cache(tmp_path: Path) -> None:
    with (
        cache.hold(tmp_path),
        pytest.raises(RigError, match="another run"),
        cache.hold(tmp_path, wait_s=0),
    ):
        pass
    with cache.hold(tmp_path, wait_s=0):
        pass


def test_a_cache_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RigError, match="could not open the cache"),
        cache.hold(tmp_path / "file/cache"),
    ):
        pass


def test_the_environment_says_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITS_CACHE", "/somewhere")
    assert cache.default_root() == Path("/somewhere/vm")
    monkeypatch.delenv("SITS_CACHE")
    assert cache.default_root() == Path("/var/cache/sits/vm")
