"""What the decision core is measured on: ticks of an engine under control, kept in inputs.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from controller.recording import Inputs, decide_batch_of, inputs_of
from tests.unit.controller.scene import scene


def record(path: Path) -> None:
    """Let the loop control an engine that goes by a virtual clock, and keep one tick of a kind."""
    with TemporaryDirectory() as directory, scene(Path(directory)) as made:
        made.control()
        recorded = [each["inputs"] for each in made.agent.of("inputs")]
    path.write_text(json.dumps(one_of_each(recorded), separators=(",", ":")) + "\n")


def one_of_each(recorded: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last tick of each kind, by what it was."""
    return {kind_of(inputs_of(fields)): fields for fields in recorded}


def kind_of(inputs: Inputs) -> str:
    """What the core does at this tick."""
    core, proposal = decide_batch_of(inputs)
    if proposal is not None:
        return "a change"
    return "once a second" if core.slow_ns != inputs.core.slow_ns else "no change"
