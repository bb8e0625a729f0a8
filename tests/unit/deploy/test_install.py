"""`make install` and `make uninstall`, into a folder that stands for the machine."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.documented import ROOT

pytestmark = pytest.mark.slow

PREFIX = "/opt/sits"


def install(what: str, root: Path, **environment: str) -> None:
    subprocess.run(
        [ROOT / "deploy" / "install.sh", what, root, PREFIX],
        env=os.environ | environment,
        check=True,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("machine")
    subprocess.run(["make", "-s", "wheels"], cwd=ROOT, check=True)
    install("install", made)
    return made


def test_installed_from_a_clone_it_runs_with_what_is_there_alone(root: Path) -> None:
    done = subprocess.run(
        [
            *(root / "opt/sits/bin/python", "-I", "-m", "agent.sitsctl"),
            *("policy", "check", root / "etc/sits/policy.toml"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "holds: mode observe, 0 engines" in done.stdout, done.stderr
    assert (root / "usr/local/bin/sitsctl").readlink() == Path(PREFIX, "bin/sitsctl")
    unit = (root / "etc/systemd/system/sitsd.service").read_text()
    assert f"{PREFIX}/bin/sitsd" in unit


def test_uninstalled_it_leaves_what_is_configured_and_purged_nothing(root: Path) -> None:
    policy = root / "etc/sits/policy.toml"
    policy.write_text("# the operator's own\n")
    install("install", root)
    install("uninstall", root)
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {"etc/sits/policy.toml"}
    assert policy.read_text() == "# the operator's own\n"
    install("uninstall", root, PURGE="1")
    assert not policy.exists()
