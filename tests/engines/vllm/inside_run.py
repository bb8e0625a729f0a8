"""Runs a script of `inside/` in vLLM's environment, with the plug-in on its path."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.engines.vllm.install import home, install, model, python
from tests.engines.vllm.launch import ENVIRONMENT, write_plugin

INSIDE: Final = Path(__file__).with_name("inside")
PATIENCE_S: Final = 400.0


def run_inside(
    script: str,
    directory: Path,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Any:
    """What the script's last line says, as JSON; `before` is a command that runs the rest of it.

    `RuntimeError` with what it said if it fails.
    """
    root = install(home())
    said = subprocess.run(
        [*before, str(python(root)), "-W", "ignore", str(INSIDE / script), str(model(root))],
        env={
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": str(write_plugin(directory)),
            **(environment or {}),
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if said.returncode:
        raise RuntimeError(f"{script} failed:\n{said.stderr[-3000:]}")
    return json.loads(said.stdout.splitlines()[-1])
