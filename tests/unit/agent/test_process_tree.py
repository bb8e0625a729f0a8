import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.process_tree import ProcessTree, children_of, parent_in, read_parents

GRANDCHILD = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"


@pytest.mark.parametrize("name", ["sleep", "a b", "(", ")", ") R 1 ("])
def test_the_parent_is_found_whatever_the_command_is_called(name: str) -> None:
    assert parent_in(f"7 ({name}) S 42 7 7 0 -1 4194304 ".encode()) == 42


def test_children_are_those_who_name_a_parent() -> None:
    assert dict(children_of({1: 0, 2: 1, 3: 1, 4: 3})) == {0: [1], 1: [2, 3], 3: [4]}


def test_the_parents_are_those_the_kernel_tells_each_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = read_parents()
        assert (found[process.pid], found[os.getpid()]) == (os.getpid(), os.getppid())
        process.kill()


def test_all_that_a_process_started_is_found_and_nothing_else() -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as other,
        subprocess.Popen(
            [sys.executable, "-c", GRANDCHILD + "; p.wait()"], stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        tree = ProcessTree()
        assert tree.with_children([child.pid]) == {child.pid, grandchild}
        assert tree.with_children([os.getpid()]) >= {os.getpid(), child.pid, grandchild, other.pid}
        os.kill(grandchild, 9)
        for each in (child, other):
            each.kill()


def test_a_process_that_is_not_there_has_nobody() -> None:
    assert ProcessTree().with_children([2**22 + 1]) == frozenset()


def test_who_was_started_since_is_found_by_the_next_look() -> None:
    tree = ProcessTree()
    tree.with_children([os.getpid()])
    with subprocess.Popen(["sleep", "60"]) as process:
        assert process.pid not in tree.with_children([os.getpid()])
        tree.next_look()
        assert process.pid in tree.with_children([os.getpid()])
        process.kill()


def test_what_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    for name, stat in (("7", b"7 (a) S 1 7"), ("8", b"torn"), ("self", b"9 (b) S 1 9")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stat").write_bytes(stat)
    (tmp_path / "10").mkdir()
    assert read_parents(tmp_path) == {7: 1}
