"""Pack the project, and the Python packages it needs, for a machine without network or pip."""

import compileall
import configparser
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.vm.debs import copy_debs
from tests.vm.rig.command import RigError

FOLDERS = ("agent", "bpf", "controller", "demo", "systemd", "tests")
FILES = ("docs/operating.md", "pyproject.toml", "setup.cfg")
GUEST_PYTHON = (3, 11)


def pack(project: Path, into: Path, pytest_arguments: Sequence[str] = ()) -> None:
    """Make `into` a payload: the entry, the project with its BPF objects, and its packages.

    Raises RigError when this interpreter's packages would not run in the guest, or one is missing.
    """
    if sys.version_info[:2] != GUEST_PYTHON:
        mine, guest = (".".join(map(str, v[:2])) for v in (sys.version_info, GUEST_PYTHON))
        raise RigError(f"the guest has Python {guest} and cannot use the packages of {mine}")
    shutil.copy2(project / "tests/vm/entry", into / "entry")
    (into / "arguments").write_text("".join(f"{argument}\n" for argument in pytest_arguments))
    copied = into / "project"
    for name in FOLDERS:
        if (project / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(project / name, copied / name, ignore=ignored)
    for name in FILES:
        (copied / name).parent.mkdir(exist_ok=True)
        shutil.copy2(project / name, copied / name)
    # The guest sees the payload read-only, and compiles an order of magnitude more slowly.
    compileall.compile_dir(copied, quiet=2, stripdir=str(into), prependdir="/payload")
    copy_packages(needed(project / "setup.cfg"), into / "packages")
    copy_debs(project, into / "debs")


def needed(setup_cfg: Path) -> list[Distribution]:
    """Return the installed distributions that the project, its engine and pytest need.

    Follows the requirements of setup.cfg through those of the packages themselves. The project is
    among them: it asks for its own version.
    """
    setup = configparser.ConfigParser()
    setup.read(setup_cfg)
    roots = setup["options"]["install_requires"] + setup["options.extras_require"]["reference"]
    return closure(
        [*filter(None, map(str.strip, roots.splitlines())), "pytest", "pytest-timeout", "sits"]
    )


def closure(requirements: Iterable[str]) -> list[Distribution]:
    """Return the installed distributions that satisfy requirements, and what those require.

    Raises RigError when one is not installed.
    """
    found: dict[str, Distribution] = {}
    open_ones = [Requirement(text) for text in requirements]
    while open_ones:
        wanted = open_ones.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = distribution(wanted.name)
        except PackageNotFoundError:
            raise RigError(f"the package '{wanted.name}' is not installed here") from None
        open_ones += [Requirement(text) for text in found[name].requires or ()]
    return list(found.values())


def copy_packages(distributions: Iterable[Distribution], into: Path) -> None:
    """Copy the files of distributions, but not their own tests or scripts, below `into`."""
    for one in distributions:
        for file in one.files or ():
            if ".." not in file.parts and "tests" not in file.parts:
                target = into / file
                target.parent.mkdir(parents=True, exist_ok=True)
                # Times are kept: by them Python knows that the compiled files still hold.
                shutil.copy2(str(file.locate()), target)
