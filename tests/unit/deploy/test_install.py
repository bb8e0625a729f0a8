"""`make install` and `make uninstall`, and what only a package has, into a folder for a machine."""

import gzip
import os
import subprocess
from pathlib import Path

import click
import pytest

from agent.sitsctl import main
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


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("package")
    subprocess.run([ROOT / "deploy" / "shell.sh", made], check=True)
    return made / "usr/share"


def test_a_package_has_a_manual_page_of_every_command(packaged: Path) -> None:
    names = {path.name for path in packaged.glob("man/man1/*")}
    assert {f"sitsctl-{name}.1.gz" for name in main.list_commands(click.Context(main))} < names
    assert b"\n.SH SYNOPSIS\n" in gzip.decompress((packaged / "man/man8/sitsd.8.gz").read_bytes())


def test_a_packages_completion_completes_commands_in_bash(packaged: Path) -> None:
    typed = """
    . "$1"; COMP_WORDS=(sitsctl st) COMP_CWORD=1
    _sitsctl_completion sitsctl; printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", typed, "bash", packaged / "bash-completion/completions/sitsctl"],
        env=os.environ | {"PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["stages", "status", "streams"]


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("zsh/vendor-completions/_sitsctl", "#compdef sitsctl"),
        ("fish/vendor_completions.d/sitsctl.fish", "function _sitsctl_completion;"),
    ],
)
def test_a_package_has_completion_for_other_shells(packaged: Path, file: str, first: str) -> None:
    assert (packaged / file).read_text().lstrip().startswith(first)
