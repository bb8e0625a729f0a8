from pathlib import Path

from agent.candidates import KEPT_NS, Candidates, candidates
from agent.cgroup_paths import CgroupPaths
from controller.limits.cgroup import Hierarchies, Mount
from controller.limits.protected import Kept

MS = 1_000_000
SECOND = 1_000_000_000


def test_who_took_most_of_an_engines_loss_is_a_candidate_unless_it_is_named() -> None:
    taken = {
        "chat": {
            (1, "python"): (500 * MS, 5),
            (2, "zstd"): (300 * MS, 3),
            (2, "tar"): (100 * MS, 1),
            (3, "cron"): (60 * MS, 1),
        }
    }
    (found,) = candidates(taken, {1})
    assert (found.cgroup, found.engine, found.command) == (2, "chat", "zstd")
    assert (found.wait_ns, found.share) == (400 * MS, 400 / 960)


def test_a_loss_that_is_small_is_nobodys() -> None:
    assert candidates({"chat": {(2, "zstd"): (20 * MS, 1)}}, set()) == []


def test_of_two_engines_the_one_that_lost_more_is_said() -> None:
    taken = {"a": {(2, "x"): (60 * MS, 1)}, "b": {(2, "x"): (90 * MS, 1)}}
    (found,) = candidates(taken, set())
    assert found.engine == "b"


def made(tmp_path: Path, *paths: str) -> Candidates:
    for path in paths:
        (tmp_path / path).mkdir(parents=True)
    return Candidates(CgroupPaths(Hierarchies(v2=Mount(tmp_path), v1_cpu=None)), Kept())


def test_candidates_have_their_path_and_what_is_protected_says_why(tmp_path: Path) -> None:
    names = ("system.slice/ssh.service", "batch.slice/etl.service")
    kept = made(tmp_path, *names)
    ids = [(tmp_path / name).stat().st_ino for name in names]
    found = candidates({"chat": {(each, "x"): (60 * MS, 1) for each in ids}}, set())
    kept.take(SECOND, found, set())
    answer = {each["cgroup"]: each for each in kept.answer()}
    assert answer["/batch.slice/etl.service"]["protected"] is None
    assert "ssh.service" in answer["/system.slice/ssh.service"]["protected"]
    assert kept.limitable() == ("/batch.slice/etl.service",)


def test_one_that_was_found_stays_while_it_takes_anything_and_then_a_minute(tmp_path: Path) -> None:
    kept = made(tmp_path, "batch")
    number = (tmp_path / "batch").stat().st_ino
    kept.take(SECOND, candidates({"chat": {(number, "x"): (60 * MS, 1)}}, set()), {number})
    kept.take(KEPT_NS // 2, [], {number})
    kept.take(SECOND, candidates({"chat": {(number, "x"): (60 * MS, 1)}}, set()), {number})
    kept.take(KEPT_NS // 2, [], {number})
    kept.take(KEPT_NS + 2 * SECOND, [], set())
    assert kept.limitable() == ("/batch",)
    kept.take(2 * KEPT_NS, [], set())
    assert kept.limitable() == ()


def test_a_cgroup_that_is_gone_is_none(tmp_path: Path) -> None:
    kept = made(tmp_path, "batch")
    number = (tmp_path / "batch").stat().st_ino
    found = candidates({"chat": {(number, "x"): (60 * MS, 1)}}, set())
    kept.take(SECOND, found, {number})
    (tmp_path / "batch").rmdir()
    kept.take(2 * SECOND, [], {number})
    assert kept.answer() == []
