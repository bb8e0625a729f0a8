import os
import subprocess
from pathlib import Path

import pytest

from controller.engine_cpus import cpus_of, parse_cpus
from controller.limits.cgroup import Group


@pytest.mark.parametrize(("text", "cpus"), [("0\n", {0}), ("0-2,5", {0, 1, 2, 5}), ("3,1", {1, 3})])
def test_a_list_of_cpus_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


def test_a_pinned_engine_may_use_only_its_cpu(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen(["taskset", "-c", str(cpu), "sleep", "60"]) as process:
        (tmp_path / "cgroup.procs").write_text(f"{process.pid}\n")
        os.sched_setaffinity(process.pid, {cpu})
        assert cpus_of(Group("/e", tmp_path, 2, 1)) == {cpu}
        process.kill()


def test_an_engine_without_a_group_may_use_all_of_them() -> None:
    assert cpus_of(None) == frozenset(range(os.cpu_count() or 1))
