import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.limits import cgroup
from controller.limits.cgroup import CgroupError, CgroupGoneError, Hierarchies, Membership, Mount

HYBRID = r"""31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:5 master:1 - cgroup2 cgroup2 rw
"""
V2_ONLY = (
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    "31 23 8:1 / /cpu rw - ext4 /dev/cpu rw,cpu\n"
)

names = st.text(
    st.characters(blacklist_characters="/\n\0", blacklist_categories=["Cs"]), min_size=1
).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, max_size=4).map(lambda parts: "/" + "/".join(parts))


def escaped(path: str) -> str:
    for character in "\\ \t\n":
        path = path.replace(character, f"\\{ord(character):03o}")
    return path


def test_a_hybrid_machine_has_both_hierarchies_and_cpuset_is_not_cpu() -> None:
    found = cgroup.parse_mountinfo(HYBRID)
    assert found.v2 == Mount(Path("/sys/fs/cgroup/unified"))
    assert found.v1_cpu == Mount(Path("/sys/fs/cgroup/cpu,cpuacct"))


def test_a_v2_machine_has_no_v1_and_other_filesystems_do_not_count() -> None:
    assert cgroup.parse_mountinfo(V2_ONLY) == Hierarchies(Mount(Path("/sys/fs/cgroup")), None)


def test_a_v1_machine_has_no_v2() -> None:
    found = cgroup.parse_mountinfo(HYBRID.replace("cgroup2 cgroup2", "tmpfs tmpfs"))
    assert found == Hierarchies(None, Mount(Path("/sys/fs/cgroup/cpu,cpuacct")))


def test_the_mount_that_shows_the_whole_hierarchy_wins_over_one_that_shows_a_part() -> None:
    part = "50 1 0:26 /pods /mnt/part rw - cgroup2 cgroup2 rw\n"
    assert cgroup.parse_mountinfo(part + V2_ONLY).v2 == Mount(Path("/sys/fs/cgroup"))
    assert cgroup.parse_mountinfo(part).v2 == Mount(Path("/mnt/part"), "/pods")


def test_every_cgroup_mount_point_is_listed_and_no_other() -> None:
    found = [str(point) for point in cgroup.mount_points(HYBRID)]
    assert found == [
        f"/sys/fs/cgroup/{name}" for name in ("cpu,cpuacct", "cpuset", "systemd", "unified")
    ]


@given(point=paths, root=paths, tags=st.lists(st.sampled_from(["shared:1", "master:2"])))
def test_any_mount_point_and_root_survive_the_kernels_escaping(
    point: str, root: str, tags: list[str]
) -> None:
    line = " ".join(["5 1 0:9", escaped(root), escaped(point), "rw", *tags, "- cgroup2 none rw"])
    assert cgroup.parse_mountinfo(f"{line}\n").v2 == Mount(Path(point), root)


@given(st.text())
def test_no_text_makes_the_parsers_fail(text: str) -> None:
    cgroup.parse_mountinfo(text)
    cgroup.parse_membership(text)


def test_a_process_on_a_hybrid_machine_has_a_path_in_each_hierarchy() -> None:
    text = "12:cpuset:/\n3:cpu,cpuacct:/sits/engine\n1:name=systemd:/user\n0::/user.slice/a\n"
    assert cgroup.parse_membership(text) == Membership(v2="/user.slice/a", v1_cpu="/sits/engine")


def test_a_process_on_a_v2_machine_has_no_v1_path() -> None:
    assert cgroup.parse_membership("0::/a\n") == Membership(v2="/a", v1_cpu=None)


@given(v2=paths, v1=paths)
def test_any_group_name_survives_in_proc_pid_cgroup(v2: str, v1: str) -> None:
    text = f"7:pids:/x\n4:cpuacct,cpu:{v1}\n0::{v2}\n"
    assert cgroup.parse_membership(text) == Membership(v2=v2, v1_cpu=v1)


def test_the_cpu_of_a_group_is_controlled_in_v1_where_the_cpu_controller_is_there(
    v1: Hierarchies,
) -> None:
    assert v1.v1_cpu is not None
    group = cgroup.cpu_group(v1, "/engine")
    assert (group.version, group.directory) == (1, v1.v1_cpu.point / "engine")
    assert group.cgroup_id == group.directory.stat().st_ino


def test_the_cpu_of_a_group_is_controlled_in_v2_otherwise(v2: Hierarchies) -> None:
    assert v2.v2 is not None
    group = cgroup.cpu_group(v2, "/engine/child")
    assert (group.version, group.directory) == (2, v2.v2.point / "engine" / "child")


def test_a_group_that_does_not_exist_is_named(either: Hierarchies) -> None:
    with pytest.raises(CgroupGoneError, match="no such cgroup: '/engin'"):
        cgroup.cpu_group(either, "/engin")


def test_the_root_group_is_refused(either: Hierarchies) -> None:
    with pytest.raises(CgroupError, match="root cgroup has no CPU limits"):
        cgroup.cpu_group(either, "/")


@pytest.mark.parametrize("path", ["engine", "", "/../engine", "/engine/..", "/a\0b"])
def test_a_path_that_is_not_a_cgroup_path_is_refused(either: Hierarchies, path: str) -> None:
    with pytest.raises(CgroupError, match="starts with '/' and has no"):
        cgroup.cpu_group(either, path)


def test_without_a_cpu_hierarchy_there_is_nothing_to_control() -> None:
    with pytest.raises(CgroupError, match="no cgroup hierarchy with the cpu controller"):
        cgroup.cpu_group(Hierarchies(None, None), "/engine")


def test_a_mount_of_a_part_of_the_tree_shows_only_that_part(v2: Hierarchies) -> None:
    assert v2.v2 is not None
    part = Hierarchies(Mount(v2.v2.point / "engine", "/engine"), None)
    assert cgroup.cpu_group(part, "/engine/child").directory == v2.v2.point / "engine" / "child"
    with pytest.raises(CgroupError, match="'/neighbour' is not below '/engine'"):
        cgroup.cpu_group(part, "/neighbour")


def test_a_cpu_controller_that_is_not_passed_on_names_each_file_to_write_and_writes_none(
    v2: Hierarchies,
) -> None:
    assert v2.v2 is not None
    controls = [v2.v2.point / name / "cgroup.subtree_control" for name in ("", "engine")]
    for file in controls:
        file.write_text("memory\n")
    (v2.v2.point / "engine" / "child" / "cpu.weight").unlink()
    with pytest.raises(CgroupError) as raised:
        cgroup.cpu_group(v2, "/engine/child")
    assert str(raised.value).endswith(f"write +cpu to '{controls[0]}', then to '{controls[1]}'")
    assert [file.read_text() for file in controls] == ["memory\n", "memory\n"]


def test_a_tree_without_the_cpu_controller_says_that_no_file_would_help(v2: Hierarchies) -> None:
    assert v2.v2 is not None
    (v2.v2.point / "cgroup.controllers").write_text("memory\n")
    (v2.v2.point / "engine" / "cpu.weight").unlink()
    with pytest.raises(CgroupError, match=r"cgroup\.controllers' does not list it"):
        cgroup.cpu_group(v2, "/engine")


def test_descendants_come_parents_first_with_their_ids(either: Hierarchies) -> None:
    group = cgroup.cpu_group(either, "/engine")
    for name in ("child/b", "child/a", "child-2"):
        (group.directory / name).mkdir()
    found = cgroup.descendants(group)
    assert [each.path for each in found] == [
        f"/engine/{name}" for name in ("child", "child/a", "child/b", "child-2")
    ]
    assert all(each.cgroup_id == each.directory.stat().st_ino for each in found)


def test_this_very_process_has_a_group_in_every_hierarchy_this_machine_mounts() -> None:
    hierarchies, membership = cgroup.read_hierarchies(), cgroup.read_membership(os.getpid())
    assert (hierarchies.v2 is None) == (membership.v2 is None)
    assert (hierarchies.v1_cpu is None) == (membership.v1_cpu is None)


def test_a_process_that_does_not_exist_is_named() -> None:
    with pytest.raises(CgroupError, match="of process 4194305: no such process"):
        cgroup.read_membership(4_194_305)


def test_writing_never_creates_a_file_and_follows_no_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "cpu.weight"
    with pytest.raises(CgroupGoneError, match="No such file"):
        cgroup.write(target, "1")
    assert not target.exists()
    target.write_text("kept")
    link.symlink_to(target)
    with pytest.raises(CgroupError, match="symbolic links"):
        cgroup.write(link, "1")
    assert target.read_text() == "kept"


def test_what_is_no_text_is_read_as_what_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "cpu.weight").write_bytes(b"\xff\xfe1")
    assert not cgroup.read(tmp_path / "cpu.weight").isdecimal()
