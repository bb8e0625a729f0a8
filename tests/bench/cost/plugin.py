"""What vLLM's plug-in adds to a step: tests/engines/vllm/cost.py, where vLLM is unpacked."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.engines.vllm.inside_run import run_inside
from tests.engines.vllm.install import home, python

from .extent import Extent
from .figures import Figure, Found


def measure(extent: Extent) -> Found:
    """The figure `plugin.step_us`; vLLM is 3 GB, so it is not fetched for this."""
    if extent.is_quick:
        return {"plugin.step_us": Figure(note="left out of a quick run")}
    if not python(home()).is_file():
        return {"plugin.step_us": Figure(note="vLLM is not unpacked (`make engines`)")}
    with TemporaryDirectory() as directory:
        return figures(run_inside("cost.py", Path(directory)))


def figures(rows: list[dict[str, Any]]) -> Found:
    """Each row is a state of the scheduler; each figure is of the quickest of many rounds.

    Every step writes the page, however long it is: so the mean a step is the same at any length.
    """
    prompts = [row["step"] for row in rows if row["prompts"]]
    return {
        "plugin.step_us": Figure(
            tuple(row["step"] for row in rows if not row["prompts"]),
            "the page and all, one value a state: with and without a lease, 100 waiting, some of"
            f" them deferred, 16 and 64 running; {max(prompts):.2f} µs at most in a step that"
            " computes a prompt too",
        )
    }
