from pathlib import Path

import pytest

from agent.cgroup_trees import CgroupTrees, directory_of
from controller.limits.cgroup import CgroupError, Mount


def make(root: Path, **members: str) -> None:
    for name, pids in members.items():
        directory = root / name.replace("__", "/")
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text(pids)


def test_a_tree_has_all_below_its_top_with_their_ids_and_no_file(tmp_path: Path) -> None:
    make(tmp_path, a="", a__b="", a__b__c="", a__d="", e="")
    expected = [tmp_path / each for each in ("a", "a/b", "a/b/c", "a/d")]
    trees, mount = CgroupTrees([Mount(tmp_path)]), Mount(tmp_path)
    assert trees.tree(mount, "/a") == tuple((str(each), each.stat().st_ino) for each in expected)
    assert trees.ids(mount, "/a") == {each.stat().st_ino for each in expected}


def test_members_are_those_of_all_below_in_every_hierarchy(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "v1", tmp_path / "v2"
    make(v1, a="1\n2\n", a__b="3\n", other="9\n")
    make(v2, a="3\n", a__c="4\n")
    assert CgroupTrees([Mount(v1), None, Mount(v2)]).members("/a") == {1, 2, 3, 4}


def test_what_is_not_there_has_no_tree_and_no_members(tmp_path: Path) -> None:
    trees, mount = CgroupTrees([Mount(tmp_path)]), Mount(tmp_path)
    assert trees.tree(mount, "/none") == ()
    assert trees.members("/none") == frozenset()


def test_a_look_reads_once_and_the_next_one_anew(tmp_path: Path) -> None:
    make(tmp_path, a="1\n")
    trees, mount = CgroupTrees([Mount(tmp_path)]), Mount(tmp_path)
    before = trees.tree(mount, "/a")
    assert trees.members("/a") == {1}
    make(tmp_path, a__b="2\n")
    assert trees.tree(mount, "/a") == before
    assert trees.members("/a") == {1}
    trees.next_look()
    assert len(trees.tree(mount, "/a")) == 2
    assert trees.members("/a") == {1, 2}


@pytest.mark.parametrize("root", ["/", "/pod", "/pod/deep"])
@pytest.mark.parametrize("path", ["/", "/pod", "/pod/deep/er", "//pod//a/", "pod", "/a/../b", "/x"])
def test_the_directory_is_the_mounts_own(tmp_path: Path, root: str, path: str) -> None:
    mount = Mount(tmp_path, root)
    try:
        expected: str | None = str(mount.directory(path))
    except CgroupError:
        expected = None
    assert directory_of(mount, path) == expected
