import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.limits import cpu, undo, undo_list
from controller.limits.cgroup import CgroupError, Group, Version
from controller.limits.change import Change
from controller.limits.holds import MOST_TAKEN_BACK, Held, Lapsed
from controller.limits.limiter import Limiter
from controller.limits.undo import Foreign, run_undo

from .conftest import make_group


class Lab:
    """A tree, the path of an undo list and a limiter for them."""

    def __init__(self, directory: Path, version: Version) -> None:
        self.root = directory / "cgroup"
        self.path = directory / "undo.json"
        self.groups = [self._group(name, version) for name in ("engine", "neighbour")]
        self.engine, self.neighbour = self.groups
        self.limiter = self.new_limiter()

    def _group(self, name: str, version: Version) -> Group:
        found = make_group(self.root, name, version)
        return Group(f"/{name}", found, version, found.stat().st_ino)

    def new_limiter(self) -> Limiter:
        return Limiter(self.path, roots=[self.root])

    def undo(self) -> undo.Report:
        return run_undo(self.path, [self.root])


@pytest.fixture(params=[1, 2])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    return Lab(tmp_path, request.param)


def weight_file(group: Group) -> Path:
    return cpu.weight_change(group, 1).file


def set_weight(lab: Lab, weight: int) -> Held:
    held = lab.limiter.set_weight(lab.engine, weight, "a neighbour takes the CPU")
    assert isinstance(held, Held)
    return held


def test_a_limit_is_held_with_its_reason_until_released(lab: Lab) -> None:
    held = set_weight(lab, 500)
    assert (held.group, held.reason) == (lab.engine, "a neighbour takes the CPU")
    assert lab.limiter.held() == (held,)
    assert cpu.read_weight(lab.engine) == 500
    assert len(lab.limiter.release(lab.engine).restored) == 1
    assert lab.limiter.held() == ()
    assert cpu.read_weight(lab.engine) == 100
    assert not lab.path.exists()


def test_the_first_originals_are_kept_over_many_changes_of_two_files(lab: Lab) -> None:
    weight_file(lab.engine).write_text("300")
    cpu.write_quota(lab.engine, 0.75)
    for weight, cores in [(500, 0.5), (700, None), (300, 0.75), (900, 0.25)]:
        lab.limiter.set_weight(lab.engine, weight, "one")
        lab.limiter.set_quota(lab.engine, cores, "two")
    assert lab.undo().complete
    assert weight_file(lab.engine).read_text() == "300"
    assert cpu.read_quota(lab.engine) == 0.75


def test_the_age_of_a_limit_is_that_of_its_first_change(lab: Lab) -> None:
    first = set_weight(lab, 500)
    assert set_weight(lab, 600).since_ns == first.since_ns


def test_releasing_one_group_leaves_the_others_limited(lab: Lab) -> None:
    for group in lab.groups:
        lab.limiter.set_quota(group, 0.5, "both")
    lab.limiter.release(lab.engine)
    assert [cpu.read_quota(group) for group in lab.groups] == [None, 0.5]
    lab.limiter.release_all()
    assert [cpu.read_quota(group) for group in lab.groups] == [None, None]


def test_setting_what_is_already_held_writes_nothing(lab: Lab) -> None:
    held = set_weight(lab, 500)
    before = (lab.path.stat(), weight_file(lab.engine).stat().st_mtime_ns)
    assert set_weight(lab, 500) == held
    assert (lab.path.stat(), weight_file(lab.engine).stat().st_mtime_ns) == before


def test_the_entry_is_on_the_list_before_the_file_is_written(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(change: Change) -> None:
        listed, _ = undo_list.load(lab.path, [lab.root])
        seen.append((listed[0].applied, change.file.read_text().strip()))
        cpu.apply(change)

    monkeypatch.setattr("controller.limits.holds.apply", look)
    texts = [set_weight(lab, weight).applied for weight in (500, 600)]
    assert seen[0] == ((texts[0],), weight_file(lab.neighbour).read_text().strip())
    assert seen[1] == ((texts[0], texts[1]), texts[0])


def test_a_foreign_write_makes_the_limiter_yield_until_reset(lab: Lab) -> None:
    set_weight(lab, 500)
    file = weight_file(lab.engine)
    file.write_text("77")
    for weight in (600, 700):
        foreign = lab.limiter.set_weight(lab.engine, weight, "again")
        assert isinstance(foreign, Foreign)
        assert (foreign.entry.file, foreign.found) == (file, "77")
    assert lab.limiter.held() == ()
    assert not lab.path.exists()
    assert lab.limiter.release_all() == undo.Report()
    assert file.read_text() == "77"
    lab.limiter.reset()
    assert set_weight(lab, 800).original == "77"


def test_a_foreign_write_found_at_release_is_left_alone(lab: Lab) -> None:
    set_weight(lab, 500)
    weight_file(lab.engine).write_text("77")
    assert [each.found for each in lab.limiter.release(lab.engine).foreign] == ["77"]
    assert weight_file(lab.engine).read_text() == "77"
    assert isinstance(lab.limiter.set_weight(lab.engine, 600, "again"), Foreign)


def test_a_foreign_write_to_one_file_leaves_the_groups_other_limit_in_force(lab: Lab) -> None:
    set_weight(lab, 500)
    lab.limiter.set_quota(lab.engine, 0.5, "two")
    weight_file(lab.engine).write_text("77")
    assert [type(each) for each in lab.limiter.check()] == [Foreign]
    assert lab.limiter.check() == ()
    assert [held.file.name for held in lab.limiter.held()] == [cpu.QUOTA_FILES[lab.engine.version]]


def test_somebody_who_sets_the_original_again_has_not_taken_the_file_over(lab: Lab) -> None:
    original = set_weight(lab, 500).original
    weight_file(lab.engine).write_text(original)
    assert set_weight(lab, 500).original == original
    assert cpu.read_weight(lab.engine) == 500


@pytest.mark.parametrize("found_by", ["check", "set"])
def test_somebody_who_does_so_again_and_again_has_until_reset(lab: Lab, found_by: str) -> None:
    file = weight_file(lab.engine)
    original = file.read_text().strip()
    for _ in range(MOST_TAKEN_BACK - 1):
        set_weight(lab, 500)
        file.write_text(original)
        if found_by == "check":
            assert [type(each) for each in lab.limiter.check()] == [Lapsed]
    set_weight(lab, 500)
    file.write_text(original)
    if found_by == "check":
        assert [type(each) for each in lab.limiter.check()] == [Foreign]
    assert isinstance(lab.limiter.set_weight(lab.engine, 600, "again"), Foreign)
    assert file.read_text() == original
    assert not lab.path.exists()
    lab.limiter.reset()
    assert set_weight(lab, 700).original == original


def test_the_guard_may_undo_as_often_as_it_has_to(lab: Lab) -> None:
    for _ in range(2 * MOST_TAKEN_BACK):
        held = set_weight(lab, 500)
        lab.undo()
        assert lab.limiter.check() == (Lapsed(held),)


def test_what_the_guard_undid_is_noticed_and_applied_afresh(lab: Lab) -> None:
    held = set_weight(lab, 500)
    lab.undo()
    assert lab.limiter.check() == (Lapsed(held),)
    assert lab.limiter.held() == ()
    assert set_weight(lab, 500).original == held.original
    assert cpu.read_weight(lab.engine) == 500
    lab.undo()
    assert cpu.read_weight(lab.engine) == 100


def test_setting_after_an_undo_needs_no_check_first(lab: Lab) -> None:
    held = set_weight(lab, 500)
    lab.undo()
    set_weight(lab, 500)
    assert cpu.read_weight(lab.engine) == 500
    assert lab.limiter.check() == (Lapsed(held),)
    lab.limiter.release_all()
    assert cpu.read_weight(lab.engine) == 100


def test_a_list_that_somebody_deleted_is_written_again(lab: Lab) -> None:
    set_weight(lab, 500)
    lab.path.unlink()
    assert lab.limiter.check() == ()
    lab.undo()
    assert cpu.read_weight(lab.engine) == 100


def test_a_group_that_vanished_lapses_and_is_dropped_from_the_list(lab: Lab) -> None:
    held = set_weight(lab, 500)
    lab.engine.directory.rename(lab.root.parent / "gone")
    assert lab.limiter.check() == (Lapsed(held),)
    assert not lab.path.exists()


def test_an_earlier_process_limits_keep_their_original_and_are_released(lab: Lab) -> None:
    original = set_weight(lab, 500).original
    lab.limiter = lab.new_limiter()
    assert set_weight(lab, 600).original == original
    lab.limiter = lab.new_limiter()
    assert len(lab.limiter.release_all().restored) == 1
    assert cpu.read_weight(lab.engine) == 100


def test_a_refused_write_leaves_file_and_list_as_they_were(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_weight(lab, 500)
    before = lab.path.read_text()
    monkeypatch.setattr("controller.limits.holds.apply", refuse)
    with pytest.raises(CgroupError, match="refused"):
        lab.limiter.set_quota(lab.engine, 0.5, "one")
    assert cpu.read_quota(lab.engine) is None
    assert lab.path.read_text() == before


def refuse(change: Change) -> None:
    raise CgroupError(f"refused: {change.file}")


def test_a_broken_list_stops_changes_and_says_where_it_is_broken(lab: Lab) -> None:
    set_weight(lab, 500)
    lab.path.write_text("[\n{\n]\n")
    with pytest.raises(CgroupError, match=r"undo\.json', line 2: not an entry"):
        lab.limiter.set_weight(lab.engine, 600, "one")
    assert cpu.read_weight(lab.engine) == 500


def test_a_locked_list_stops_changes(lab: Lab) -> None:
    with (
        undo_list.locked(lab.path, 0),
        pytest.raises(CgroupError, match="locked by another process"),
    ):
        lab.limiter.set_weight(lab.engine, 600, "one")
    assert cpu.read_weight(lab.engine) == 100


def test_a_directory_that_is_missing_stops_changes(lab: Lab) -> None:
    limiter = Limiter(lab.path.parent / "none" / "undo.json", roots=[lab.root])
    with pytest.raises(CgroupError, match=r"could not use undo list .*No such file"):
        limiter.set_weight(lab.engine, 600, "one")
    assert cpu.read_weight(lab.engine) == 100


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    ends = list(os.pipe())
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def test_beats_are_written_each_100_ms_at_most(tmp_path: Path, pipe: list[int]) -> None:
    limiter = Limiter(tmp_path / "undo.json", pipe[1])
    for now_ms in range(1_000, 2_000, 10):
        assert limiter.heartbeat(now_ms * 1_000_000)
    assert os.read(pipe[0], 1_000) == b"b" * 10


def test_a_guard_that_reads_nothing_does_not_block_the_loop(
    tmp_path: Path, pipe: list[int]
) -> None:
    limiter = Limiter(tmp_path / "undo.json", pipe[1])
    assert all(limiter.heartbeat(beat * 100_000_000) for beat in range(1, 70_000))


def test_a_guard_that_is_gone_is_noticed(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        assert not Limiter(tmp_path / "undo.json", write_fd).heartbeat(100_000_000)
    finally:
        os.close(write_fd)


def test_the_first_value_that_somebody_put_back_is_held_as_that_once_it_is_asked_for(
    lab: Lab,
) -> None:
    first = weight_file(lab.engine).read_text()
    set_weight(lab, 500)
    weight_file(lab.engine).write_text(first)
    assert set_weight(lab, 100).applied == first.strip()
    assert lab.limiter.check() == ()


class Against(RuleBasedStateMachine):
    """Random use of a limiter against a model: what each file should hold and who wrote it."""

    groups = st.sampled_from([0, 1])
    kinds = st.sampled_from(["weight", "quota"])

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()

    def teardown(self) -> None:
        self.directory.cleanup()

    @initialize(version=st.sampled_from([1, 2]))
    def start(self, version: Version) -> None:
        self.lab = Lab(Path(self.directory.name), version)
        self.change = {"weight": cpu.weight_change, "quota": cpu.quota_change}
        self.files = {
            (index, kind): change(group, 1).file
            for index, group in enumerate(self.lab.groups)
            for kind, change in self.change.items()
        }
        self.holds = {key: file.read_text().strip() for key, file in self.files.items()}
        self.ours: dict[tuple[int, str], tuple[str, str]] = {}
        self.taken: Counter[tuple[int, str]] = Counter()
        self.yielded: set[tuple[int, str]] = set()

    @rule(index=groups, kind=kinds, value=st.integers(1, 4))
    def set(self, index: int, kind: str, value: int) -> None:
        key = (index, kind)
        group = self.lab.groups[index]
        wanted = self.change[kind](group, value).text
        result = (
            self.lab.limiter.set_weight(group, value, "model")
            if kind == "weight"
            else self.lab.limiter.set_quota(group, value, "model")
        )
        if key in self.ours and self._is_theirs(key):
            del self.ours[key]
            self.yielded.add(key)
        if key in self.yielded:
            assert isinstance(result, Foreign)
            return
        assert isinstance(result, Held)
        original = self.ours[key][0] if key in self.ours else self.holds[key]
        assert (result.original, result.applied) == (original, wanted)
        self.ours[key] = (original, wanted)
        self.holds[key] = wanted

    @rule(index=groups, kind=kinds, value=st.integers(1, 6))
    def foreign_write(self, index: int, kind: str, value: int) -> None:
        text = self.change[kind](self.lab.groups[index], value).text
        self.files[index, kind].write_text(text)
        self.holds[index, kind] = text

    @rule(index=groups)
    def release(self, index: int) -> None:
        self.lab.limiter.release(self.lab.groups[index])
        self._put_back([key for key in self.ours if key[0] == index], noticed=True)

    @rule()
    def release_all(self) -> None:
        self.lab.limiter.release_all()
        self._put_back(list(self.ours), noticed=True)

    @rule()
    def check(self) -> None:
        self.lab.limiter.check()
        for key, (_, applied) in list(self.ours.items()):
            if self.holds[key] != applied:
                if self._is_theirs(key):
                    self.yielded.add(key)
                del self.ours[key]

    @rule()
    def the_guard_undoes_and_the_limiter_looks(self) -> None:
        self.lab.undo()
        self.lab.limiter.check()
        # A limit that equals its original is in force whether undone or not.
        still = [key for key, texts in self.ours.items() if {self.holds[key]} == {*texts}]
        self._put_back([key for key in self.ours if key not in still], noticed=True)

    @rule()
    def the_process_is_replaced_after_an_undo(self) -> None:
        self.lab.undo()
        self.lab.limiter = self.lab.new_limiter()
        self._put_back(list(self.ours), noticed=False)
        self.yielded.clear()
        self.taken.clear()

    @rule()
    def reset(self) -> None:
        self.lab.limiter.reset()
        self.yielded.clear()
        self.taken.clear()

    @invariant()
    def every_file_holds_what_it_should(self) -> None:
        if hasattr(self, "files"):
            found = {key: file.read_text().strip() for key, file in self.files.items()}
            assert found == self.holds

    @invariant()
    def held_and_listed_are_what_is_ours(self) -> None:
        if hasattr(self, "files"):
            held = {each.file: (each.original, each.applied) for each in self.lab.limiter.held()}
            assert held == {self.files[key]: texts for key, texts in self.ours.items()}
            listed, problems = undo_list.load(self.lab.path, [self.lab.root])
            assert problems == ()
            assert {entry.file: entry.original for entry in listed} == {
                file: original for file, (original, _) in held.items()
            }

    def _is_theirs(self, key: tuple[int, str]) -> bool:
        """Whether a file that is ours has another's value, or its first for too often."""
        original, applied = self.ours[key]
        if self.holds[key] in (original, applied):
            self.taken[key] += self.holds[key] != applied
            return self.holds[key] != applied and self.taken[key] >= MOST_TAKEN_BACK
        return True

    def _put_back(self, keys: list[tuple[int, str]], noticed: bool) -> None:
        for key in keys:
            original, applied = self.ours.pop(key)
            if self.holds[key] == applied:
                self.holds[key] = original
            elif self.holds[key] != original and noticed:
                self.yielded.add(key)


Against.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAgainstAModel = Against.TestCase
