"""A trace with what the engine can do with it, and the plans that follow from both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from demo import calibrate
from demo.stats import Slo
from demo.trace import Load, Request, read_trace

from .bench import Bench, Calibration
from .extent import Extent
from .loads import TRACES, Plan, with_warm_up

WARM_UP_EVERY_S: Final = 0.25
WARM_UP_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Material:
    """One trace and its calibration."""

    name: str
    requests: Sequence[Request]
    calibration: Calibration
    warm_up: int

    @property
    def slo(self) -> Slo:
        """What the engine owes the requests of this trace."""
        return self.calibration.slo

    def rate(self, share: float) -> float:
        """Requests a second that are this share of the capacity."""
        return self.calibration.capacity_rps * share

    def plan(self, load: Load, warm_up_requests: int | None = None) -> Plan:
        """A load behind so many requests of warm-up, which come one after the other."""
        count = self.warm_up if warm_up_requests is None else warm_up_requests
        warm_up = [
            Request(
                number * WARM_UP_EVERY_S,
                self.calibration.prompt_tokens,
                calibrate.UNLOADED_ANSWER_TOKENS,
            )
            for number in range(count)
        ]
        return with_warm_up(load, warm_up, WARM_UP_PAUSE_S)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        unloaded = self.calibration.unloaded
        return {
            "trace": self.name,
            "capacity_rps": self.calibration.capacity_rps,
            "unloaded": {"ttft_ms": unloaded.ttft_ms, "gap_ms": unloaded.gap_ms},
            "slo": {"ttft_ms": self.slo.ttft_ms, "gap_ms": self.slo.gap_ms},
        }


def material(bench: Bench, extent: Extent, name: str) -> Material:
    """The trace of that name, calibrated."""
    requests = read_trace(TRACES / f"{name}.csv")
    calibration = bench.calibrate(name, requests, extent.unloaded_requests)
    return Material(name, requests, calibration, extent.warm_up)
