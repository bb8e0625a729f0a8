import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.vm.payload import closure, copy_packages, needed
from tests.vm.rig.command import RigError

PROJECT = Path(__file__).resolve().parents[3]


def names(requirements: list[str]) -> set[str]:
    """Return the names of the distributions that requirements lead to."""
    return {one.metadata["Name"].lower() for one in closure(requirements)}


def test_requirements_bring_what_they_require() -> None:
    assert names(["rich>=13.7"]) == {"rich", "markdown-it-py", "mdurl", "pygments"}


def test_requirements_for_other_systems_and_extras_are_left_out() -> None:
    other = "no-such-package; sys_platform == 'win32'"
    assert names(["mdurl", other, "nor-this; extra == 'docs'"]) == {"mdurl"}


def test_a_missing_package_is_named() -> None:
    with pytest.raises(RigError, match="'no-such-package' is not installed"):
        closure(["no-such-package"])


def test_the_project_needs_its_requirements_its_engines_and_pytest() -> None:
    found = {one.metadata["Name"].lower() for one in needed(PROJECT / "setup.cfg")}
    assert {"click", "prometheus_client", "psutil", "rich", "numpy", "pytest", "sits"} <= {
        name.replace("-", "_") for name in found
    }


def test_the_project_knows_its_version_where_its_packages_are_copied_to(tmp_path: Path) -> None:
    copy_packages(closure(["sits"]), tmp_path)
    ask = f"""
import sys; sys.path[:0] = [{str(tmp_path)!r}]
from importlib.metadata import version; print(version("sits"))
"""
    said = subprocess.run([sys.executable, "-ISc", ask], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == version("sits")


def test_copied_packages_work_on_their_own(tmp_path: Path) -> None:
    copy_packages(closure(["pytest"]), tmp_path)
    done = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import pytest"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
