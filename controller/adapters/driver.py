"""What an adapter needs of an engine: a driver over that engine's own admin interface."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.engines.contract import Knob
from controller.engines.page import Step


class AdapterError(Exception):
    """The engine can't be reached, or did not do what it was asked; the message says what."""


class EngineChangedError(Exception):
    """The engine is not the one it was, or offers other knobs: everything begins anew."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which engine answers. `instance` changes when it restarts; `pid` is 0 if unknown.

    An engine that goes back to its configured values without a restart (a reload) is another
    instance too: what was written to it is gone.
    """

    engine: str
    version: str
    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What the engine tells of itself, as `EngineNow` names it; None where it does not.

    A `*_total` may start anywhere: only its growth counts. `oldest_arrival_ns` (CLOCK_MONOTONIC) is
    worked out from `waiting` and `requests_total` where the engine does not tell it. `ended` are
    the last of the `steps` that ended since the driver was asked before. `max_batched_tokens`
    counts where it is no knob.
    """

    waiting: int | None = None
    running: int | None = None
    waiting_tokens: int | None = None
    oldest_arrival_ns: int | None = None
    kv_used: int | None = None
    kv_total: int | None = None
    requests_total: int | None = None
    finished_total: int | None = None
    prompt_tokens_total: int | None = None
    generated_tokens_total: int | None = None
    preemptions_total: int | None = None
    shed_total: int | None = None
    max_batched_tokens: int | None = None
    steps: int | None = None
    ended: tuple[Step, ...] = ()


class Driver(Protocol):
    """One engine by its own admin interface.

    Calls block, for a bounded time, and all come from one thread. Each raises `AdapterError`, and
    `identify` and `read` also `EngineChangedError` when what `knobs` told holds no more.
    """

    def identify(self) -> Identity:
        """Which engine answers now."""

    def knobs(self) -> Mapping[str, Knob]:
        """What can be changed, probed; `start` is what is in force, before anything was written.

        It also takes note of what `keep` returns.
        """

    def keep(self) -> Mapping[str, object]:
        """What another process needs beside the knobs' values to write the start values back.

        Something JSON can hold; it is persisted before the first write.
        """

    def recall(self, kept: Mapping[str, object]) -> None:
        """Go on from what `keep` returned in an earlier process; instead of `knobs`."""

    def read(self) -> Mapping[str, float]:
        """The value of every knob as the engine has it in force."""

    def write(self, values: Mapping[str, float]) -> None:
        """Put the value of every knob in force and return once they are; all or nothing.

        Values that are in force already cost nothing. It must not reach another instance than the
        last `identify` told, as far as the engine's interface can promise that.
        """

    def figures(self) -> Figures:
        """What the engine does now."""

    def close(self) -> None:
        """Let go of the engine. Never raises, and nothing is called afterwards."""
