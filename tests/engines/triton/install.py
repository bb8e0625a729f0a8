"""A real tritonserver, out of the wheel of nvidia-pytriton, kept in the cache: no root, no GPU.

    python -m tests.engines.triton.install

About 70 MB are downloaded from PyPI and 240 MB installed. The environment is made under another
name and renamed when complete, so a broken run leaves nothing that looks whole. The wheel has the
Python backend only.
"""

import ctypes.util
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from tests.cached import cache_root, made_once

VERSION: Final = "0.7.0"
"""Of nvidia-pytriton; the server in it is 2.51.0."""

PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def home() -> Path:
    """Where it lies: `$SITS_CACHE/triton-VERSION`, by default in /var/cache/sits."""
    return cache_root() / f"triton-{VERSION}"


def server(root: Path) -> Path:
    """The folder of the server: bin, backends, caches."""
    return root / "lib" / f"python{PYTHON}" / "site-packages" / "pytriton" / "tritonserver"


def backends(root: Path) -> Path:
    """The backend directory; the Python backend needs its stub, of this Python, beside it."""
    return root / "backends"


def install(root: Path) -> Path:
    """Make sure it is there; returns `root`. A second caller waits for the first."""
    assert ctypes.util.find_library(f"python{PYTHON}"), f"install libpython{PYTHON} (Debian)"
    return made_once(root, _build)


def _build(fresh: Path) -> None:
    venv.create(fresh, with_pip=True)
    pip = [str(fresh / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # without what it depends on: that is for its Python side, which is not used. With numpy 2 the
    # backend answers with empty tensors
    for arguments in (["--no-deps", f"nvidia-pytriton=={VERSION}"], ["numpy<2"]):
        subprocess.run([*pip, "install", "--no-compile", *arguments], check=True)
    folder, from_wheel = backends(fresh) / "python", server(fresh)
    folder.mkdir(parents=True)
    # links, since the stub finds its libraries by where it really lies
    for file in (
        from_wheel / "backends" / "python" / "libtriton_python.so",
        from_wheel / "backends" / "python" / "triton_python_backend_utils.py",
        from_wheel / "python_backend_stubs" / PYTHON / "triton_python_backend_stub",
    ):
        (folder / file.name).symlink_to(os.path.relpath(file, folder))


if __name__ == "__main__":
    print(install(home()))
