"""What runs in a test's cgroups, and what these hold."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from controller.limits.change import IDLE_FILE
from controller.limits.cpu import QUOTA_FILES, WEIGHT_FILES
from tests.kernel.conftest import TwinGroup

ENGINE_CPU: Final = 0
"""The engine and its neighbours share one CPU, so that they are in each other's way."""

_ENTER: Final = 'echo $$ >"$1" && echo $$ >"$2" && shift 2 && exec "$@"'


def inside(group: TwinGroup, *command: str) -> list[str]:
    """A command that begins in `group`: its sockets belong there from the first."""
    files = [str(directory / "cgroup.procs") for directory in (group.cpu, group.v2)]
    return ["/bin/sh", "-c", _ENTER, "sh", *files, *command]


def limits(*groups: TwinGroup) -> dict[str, str]:
    """The text of every weight and quota file of these groups, and whether they are idle."""
    names = {*WEIGHT_FILES.values(), *QUOTA_FILES.values(), IDLE_FILE}
    return {
        str(group.cpu / name): (group.cpu / name).read_text().strip()
        for group in groups
        for name in names
        if (group.cpu / name).exists()
    }


@contextmanager
def favoured(group: TwinGroup) -> Iterator[None]:
    """Give `group` nearly all of a CPU it wants: what else this machine does is not to matter."""
    texts = {"cpu.shares": "262144", "cpu.weight": "10000"}
    (file,) = [group.cpu / name for name in texts if (group.cpu / name).exists()]
    before = file.read_text()
    file.write_text(texts[file.name])
    try:
        yield
    finally:
        file.write_text(before)


@contextmanager
def burning(*groups: TwinGroup) -> Iterator[None]:
    """A busy loop in each group, on the engine's CPU."""
    loop = ("taskset", "-c", str(ENGINE_CPU), "/bin/sh", "-c", "while :; do :; done")
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(inside(g, *loop))) for g in groups]
        try:
            yield
        finally:
            for process in processes:
                process.kill()
