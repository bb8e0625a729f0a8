"""How far it goes: what the bench of scale found, from the file that it writes."""

import json
from pathlib import Path
from typing import Final

from tests.bench.ground import ROOT

from .extent import Extent
from .figures import Figure, Found

FILE: Final = ROOT / "build" / "scale.json"
KEYS: Final = ("scale.streams", "scale.cgroups", "scale.cpus_simulated")


def measure(extent: Extent) -> Found:
    """The figures `scale.*`, as they were measured last."""
    del extent
    return read(FILE)


def read(path: Path) -> Found:
    """Those of a file; where it lacks one, why."""
    told = json.loads(path.read_text()) if path.is_file() else {}
    return {
        key: Figure((float(told[key]),))
        if told.get(key) is not None
        else Figure(note=f"no {path.name}")
        for key in KEYS
    }
