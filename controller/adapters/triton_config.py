"""A Triton model's configuration as knobs: what they are, and the configuration that sets them.

Pure. A configuration is the protobuf message `ModelConfig` as JSON has it: field names as in the
.proto file, 64-bit numbers as strings, what is at its default left out
(triton-inference-server/common, protobuf/model_config.proto).
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from controller.engines.contract import KNOBS, Knob

WINDOW: Final = "batch_window_ms"
"""`dynamic_batching.max_queue_delay_microseconds`: how long the batcher waits for more."""

CONCURRENCY: Final = "concurrency"
"""`instance_group.count`, where each instance takes one request at a time."""

LONGEST_MS: Final = 200.0
"""Seed B1's longest window; more only where the model was started with more."""

_US_PER_MS: Final = 1000

Config = Mapping[str, Any]


def knobs(config: Config) -> dict[str, Knob]:
    """What can be retuned, as it is in force; nothing of a model whose requests belong together.

    A reload would end the sequences of a sequence batcher, and an ensemble has no batches of its
    own. Instances are only ever taken away, since more of them need memory that nobody planned for,
    and only of a model with one group of them that takes one request each: of others, so many
    requests at once are no whole number of instances.
    """
    if "sequence_batching" in config or "ensemble_scheduling" in config:
        return {}
    found = {}
    if "dynamic_batching" in config:
        start = window_ms(config)
        found[WINDOW] = _knob(WINDOW, 0.0, max(LONGEST_MS, start), start)
    groups = config.get("instance_group", [])
    spread = len(groups) != 1 or len(groups[0].get("gpus", [])) > 1
    if not spread and largest_batch(config) == 1 and instances(config) > 1:
        count = float(instances(config))
        found[CONCURRENCY] = _knob(CONCURRENCY, 1.0, count, count)
    return found


def value(config: Config, knob: str) -> float:
    """What a knob of this configuration is at."""
    return window_ms(config) if knob == WINDOW else float(instances(config))


def window_ms(config: Config) -> float:
    """How long a batch waits to fill, in ms."""
    return int(config.get("dynamic_batching", {}).get(_DELAY, 0)) / _US_PER_MS


def largest_batch(config: Config) -> int:
    """Items that one execution takes at most; 1 where the model does not batch."""
    return max(1, int(config.get("max_batch_size", 0)))


def instances(config: Config) -> int:
    """Instances of the first group; one where the configuration does not say."""
    groups = config.get("instance_group", [])
    return int(groups[0].get("count", 1)) if groups else 1


def with_values(config: Config, wanted: Mapping[str, float]) -> dict[str, Any]:
    """The complete configuration with these knobs set and everything else as it is."""
    changed = deepcopy(dict(config))
    if WINDOW in wanted:
        changed["dynamic_batching"][_DELAY] = str(round(wanted[WINDOW] * _US_PER_MS))
    if CONCURRENCY in wanted:
        changed["instance_group"][0]["count"] = int(wanted[CONCURRENCY])
    return changed


_DELAY: Final = "max_queue_delay_microseconds"


def _knob(name: str, minimum: float, maximum: float, start: float) -> Knob:
    return Knob(name, minimum, maximum, start, KNOBS[name], "reload")
