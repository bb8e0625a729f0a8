"""The engines that the bench can be run with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.rig import ROOT


@dataclass(frozen=True, slots=True)
class BenchEngine:
    """An engine: how it is started, and the code that its times come from."""

    name: str
    model: str
    options: Sequence[str]
    sources: Sequence[Path]


REFERENCE: Final = BenchEngine(
    "reference",
    "the reference engine's decoder in NumPy: 2 layers, width 256, head 10240, random weights",
    ("--max-running=64", "--max-batched-tokens=2048", "--max-context=2048", "--kv-tokens=65536"),
    (ROOT / "controller" / "reference",),
)

_ENGINES: Final = {engine.name: engine for engine in (REFERENCE,)}


def engine_named(name: str) -> BenchEngine:
    """The engine of that name; `ValueError` names those there are."""
    try:
        return _ENGINES[name]
    except KeyError:
        known = ", ".join(sorted(_ENGINES))
        raise ValueError(f"the bench has no engine {name!r} yet; it has: {known}") from None
