"""Each capability of the unit is needed: without it something named there no longer works."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.guest.conftest import MakeCgroup

UNIT = Path(__file__).parents[3] / "systemd/sitsd.service"
NOBODY = 65534
LISTENER = """
import os, socket, sys
tcp = socket.create_server(("127.0.0.1", 0))
unix = socket.socket(socket.AF_UNIX); unix.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o600)
unix.listen()
print("ready", flush=True)
sys.stdin.read()
"""
NEEDED_FOR = {
    "CAP_BPF": {"traces", "attaches"},
    "CAP_PERFMON": {"traces", "attaches"},
    "CAP_NET_ADMIN": {"traces", "attaches"},
    "CAP_SYS_PTRACE": {"finds ports"},
    "CAP_DAC_OVERRIDE": {"finds ports", "reaches engines"},
}
"""What no longer works without each; loading gives up altogether when one of three is missing."""


def granted() -> set[str]:
    """The capabilities that the unit gives."""
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    return {name for line in lines for name in line.split()}


@pytest.fixture(scope="module")
def stranger() -> Iterator[tuple[int, str]]:
    """Another user's process that listens, and its Unix socket."""
    folder = Path("/tmp/stranger")
    folder.mkdir()
    folder.chmod(0o777)
    path = str(folder / "admin.sock")
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid, path
        process.kill()
    Path(path).unlink()
    folder.rmdir()


def fails(capabilities: set[str], stranger: tuple[int, str], cgroup: Path) -> set[str]:
    """What does not work with these capabilities only."""
    names = ",".join("+" + name.removeprefix("CAP_").lower() for name in sorted(capabilities))
    bounded = ["setpriv", "--bounding-set", f"-all,{names}", "--inh-caps", "-all"]
    probe = [sys.executable, "-m", "tests.vm.guest.capability_probe"]
    done = subprocess.run(
        [*bounded, *probe, str(stranger[0]), stranger[1], str(cgroup)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {what for what, works in json.loads(done.stdout).items() if not works}


def test_each_capability_of_the_unit_has_its_use_named() -> None:
    assert granted() == NEEDED_FOR.keys()


def test_with_the_units_capabilities_everything_works(
    heavy: None, stranger: tuple[int, str], make_cgroup: MakeCgroup
) -> None:
    assert fails(granted(), stranger, make_cgroup("engine")) == set()


@pytest.mark.parametrize("capability", NEEDED_FOR)
def test_without_one_that_is_lost(
    heavy: None, capability: str, stranger: tuple[int, str], make_cgroup: MakeCgroup
) -> None:
    lost = fails(granted() - {capability}, stranger, make_cgroup("engine"))
    assert lost == NEEDED_FOR[capability]
