"""The package that is installed in the machine, and two that follow it."""

import re
import shutil
from pathlib import Path

from tests.vm.rig.command import RigError, run

PACKAGES = "opt/sits/lib/python3.11/site-packages"
TIMEOUT_S = 120


def copy_debs(project: Path, into: Path) -> None:
    """Put three packages there: `sits.deb` as it was built, and two of higher versions.

    `newer.deb` differs by its version alone; `relaid.deb` also says that its maps have another
    layout. Raises RigError when none was built.
    """
    built = sorted((project / "build").glob("sits_*.deb"), key=lambda path: path.stat().st_mtime)
    if not built:
        raise RigError("there is no build/sits_*.deb: make deb")
    into.mkdir()
    shutil.copy2(built[-1], into / "sits.deb")
    tree = into / "tree"
    run(["dpkg-deb", "-R", built[-1], tree], timeout_s=TIMEOUT_S)
    layout = tree / PACKAGES / "bpf/layout.py"
    same = layout.read_text()
    other, replaced = re.subn(r"^(LAYOUT_VERSION.*= )\d+$", r"\g<1>1000", same, flags=re.MULTILINE)
    if replaced != 1:
        raise RigError(f"no LAYOUT_VERSION in {layout}")
    # it is compiled in the package, and would not be looked at
    shutil.rmtree(layout.parent / "__pycache__")
    control = (tree / "DEBIAN/control").read_text()
    for name, suffix, text in (("newer", "+1", same), ("relaid", "+2", other)):
        layout.write_text(text)
        changed = re.sub(r"^(Version: .*)$", rf"\1{suffix}", control, flags=re.MULTILINE)
        (tree / "DEBIAN/control").write_text(changed)
        pack = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build"]
        run([*pack, tree, into / f"{name}.deb"], timeout_s=TIMEOUT_S)
    shutil.rmtree(tree)
