from pathlib import Path

from tests.bench.slo.cache import Cache, hash_of_sources, key_of


def test_what_was_kept_is_found_by_the_same_inputs_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "slo")
    assert cache.get({"a": 1}) is None
    cache.put({"a": 1, "b": 2}, [3])
    assert cache.get({"b": 2, "a": 1}) == [3]
    assert cache.get({"a": 1}) is None


def test_a_fresh_cache_finds_only_what_it_made(tmp_path: Path) -> None:
    Cache(tmp_path).put({"a": 1}, "old")
    fresh = Cache(tmp_path, fresh=True)
    assert fresh.get({"a": 1}) is None
    fresh.put({"a": 1}, "new")
    assert fresh.get({"a": 1}) == "new"


def test_inputs_are_known_whatever_their_order() -> None:
    assert key_of({"a": 1, "b": {"c": 2, "d": 3}}) == key_of({"b": {"d": 3, "c": 2}, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


def test_a_change_of_the_code_changes_its_hash(tmp_path: Path) -> None:
    (tmp_path / "law.py").write_text("a = 1\n")
    before = hash_of_sources([tmp_path])
    (tmp_path / "notes.md").write_text("no code\n")
    assert hash_of_sources([tmp_path]) == before
    (tmp_path / "law.py").write_text("a = 2\n")
    assert hash_of_sources([tmp_path]) != before
