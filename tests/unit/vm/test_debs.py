import subprocess
from pathlib import Path

import pytest

from tests.vm.debs import PACKAGES, copy_debs
from tests.vm.rig.command import RigError

CONTROL = "Package: sits\nVersion: 1.5\nArchitecture: all\nMaintainer: m\nDescription: d\n"


def field(deb: Path, name: str) -> str:
    """A field of a package's control file."""
    done = subprocess.run(["dpkg-deb", "-f", deb, name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def layout(deb: Path, into: Path) -> str:
    """What a package's code says of its maps."""
    subprocess.run(["dpkg-deb", "-x", deb, into], check=True)
    return (into / PACKAGES / "bpf/layout.py").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that built a package."""
    tree = tmp_path / "tree"
    (tree / PACKAGES / "bpf/__pycache__").mkdir(parents=True)
    (tree / PACKAGES / "bpf/layout.py").write_text("A = 1\nLAYOUT_VERSION: Final = 6\n")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(CONTROL)
    (tmp_path / "build").mkdir()
    deb = tmp_path / "build/sits_1.5_all.deb"
    subprocess.run(["dpkg-deb", "-b", tree, deb], check=True, capture_output=True)
    return tmp_path


def test_the_packages_that_follow_have_higher_versions_in_their_order(project: Path) -> None:
    copy_debs(project, project / "debs")
    names = ("sits", "newer", "relaid")
    assert [field(project / f"debs/{name}.deb", "Version") for name in names] == [
        *("1.5", "1.5+1", "1.5+2")
    ]
    assert {path.name for path in (project / "debs").iterdir()} == {f"{n}.deb" for n in names}


def test_only_the_last_has_another_layout(project: Path, tmp_path: Path) -> None:
    copy_debs(project, project / "debs")
    same, other = (
        layout(project / f"debs/{name}.deb", tmp_path / name) for name in ("newer", "relaid")
    )
    assert same == "A = 1\nLAYOUT_VERSION: Final = 6\n"
    assert other == "A = 1\nLAYOUT_VERSION: Final = 1000\n"


def test_where_none_was_built_it_is_said_how(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="make deb"):
        copy_debs(tmp_path, tmp_path / "debs")
