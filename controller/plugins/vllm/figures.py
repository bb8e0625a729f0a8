"""The page's figures as one array: where each stands, in the order of `EngineNow`."""

from array import array
from dataclasses import fields
from typing import Final

from controller.engines.page import EngineNow

_PLACE: Final = {field.name: place for place, field in enumerate(fields(EngineNow))}

UPDATED: Final = _PLACE["updated_ns"]
STEPS: Final = _PLACE["steps"]
WAITING: Final = _PLACE["waiting"]
RUNNING: Final = _PLACE["running"]
WAITING_TOKENS: Final = _PLACE["waiting_tokens"]
OLDEST: Final = _PLACE["oldest_arrival_ns"]
KV_USED: Final = _PLACE["kv_used"]
KV_TOTAL: Final = _PLACE["kv_total"]
REQUESTS: Final = _PLACE["requests_total"]
FINISHED: Final = _PLACE["finished_total"]
PROMPT_TOKENS: Final = _PLACE["prompt_tokens_total"]
GENERATED: Final = _PLACE["generated_tokens_total"]
PREEMPTIONS: Final = _PLACE["preemptions_total"]
EPOCH: Final = _PLACE["epoch"]
MAX_RUNNING: Final = _PLACE["max_running"]
MAX_BATCHED: Final = _PLACE["max_batched_tokens"]
EXPIRIES: Final = _PLACE["lease_expiries_total"]
DEFERRED: Final = _PLACE["deferred"]
DEFERRED_TOTAL: Final = _PLACE["deferred_total"]
LONGEST: Final = _PLACE["longest_deferral_ms"]
ON_TIME: Final = _PLACE["on_time_tokens"]


def no_figures() -> "array[int]":
    """All of them, nothing counted yet."""
    return array("Q", bytes(8 * len(_PLACE)))
