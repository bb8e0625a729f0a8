"""Follows every engine's load and keeps the advice for it: how many engines, when to warm one."""

from collections.abc import Mapping
from typing import Any, Final

from agent.history import Moment, Window
from controller.advice import Advice, Observed, advise
from controller.engines.page import EngineNow
from controller.laws import KV_WATERMARK, capacity_rps
from controller.load import Load, after
from controller.policy_model import Slo
from controller.predict.buckets import Buckets
from controller.predict.chooser import Chooser
from controller.step_model import StepModel, of_ms

HORIZON_S: Final = 15
"""What is planned for is the mean load of so many seconds to come: an engine takes longer to start,
but a shorter peak is waited out."""

WINDOW_S: Final = 60.0
"""Over which latencies and the mean rate are taken."""


class Advisor:
    """The advice of the day. `take` from one thread, `advice` from any."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def take(
        self,
        engine: str,
        slo: Slo,
        moment: Moment,
        window: Window | None,
        status: Mapping[str, Any] | None,
    ) -> None:
        """Add what is known once a second: all that was counted, the last minute, the status.

        Without a status (no controller, no engine) nothing is known of what the engine can do.
        """
        track = self._tracks.setdefault(engine, _Track())
        now_s = moment.at_ns / 1e9
        for rate in track.requests.take(moment.at_ns, moment.counters.requests):
            track.chooser.observe(rate)
        shown = _shown(status)
        passed_s = now_s - (track.advice.at_s or now_s)
        track.load = after(track.load, shown, passed_s) if shown is not None else Load()
        p95_ns, p99_ns = (
            window.ttft.quantile_ns(q) if window is not None else None for q in (0.95, 0.99)
        )
        track.advice = advise(
            track.advice,
            Observed(
                now_s=now_s,
                slo_ttft_ms=slo.ttft_ms,
                rps=window.counters.requests / window.seconds if window is not None else 0.0,
                planned_rps=track.chooser.outlook.plan,
                capacity_rps=_capacity(status, shown, track.load, slo),
                ttft_p95_ms=p95_ns / 1e6 if p95_ns is not None else None,
                ttft_p99_ms=p99_ns / 1e6 if p99_ns is not None else None,
                waiting=shown.waiting if shown is not None else None,
                running=shown.running if shown is not None else None,
            ),
        )

    def keep(self, engines: set[str]) -> None:
        """Forget all other engines."""
        for name in self._tracks.keys() - engines:
            del self._tracks[name]

    def advice(self, engine: str) -> Advice:
        """What is advised for an engine now."""
        track = self._tracks.get(engine)
        return track.advice if track is not None else Advice()


class _Track:
    """What is kept of one engine."""

    def __init__(self) -> None:
        self.requests = Buckets()
        self.chooser = Chooser(HORIZON_S)
        self.load = Load()
        self.advice = Advice()


def _shown(status: Mapping[str, Any] | None) -> EngineNow | None:
    """What the engine shows of itself, as far as it matters here."""
    now = status["now"] if status is not None else None
    if now is None:
        return None
    return EngineNow(
        waiting=now["waiting"],
        running=now["running"],
        kv_total=now["kv_total"],
        requests_total=now["requests_total"],
        finished_total=now["finished_total"],
        prompt_tokens_total=now["prompt_tokens_total"],
        generated_tokens_total=now["generated_tokens_total"],
    )


def _capacity(
    status: Mapping[str, Any] | None, shown: EngineNow | None, load: Load, slo: Slo
) -> float | None:
    """Requests a second that the engine holds within its gap SLO, at its start values."""
    if status is None or shown is None or not load.known or not status["model"]["trusted"]:
        return None
    running = status["knobs"].get("max_running")
    most = running["start"] if running is not None else float("inf")
    if shown.kv_total:
        most = min(most, KV_WATERMARK * shown.kv_total / (load.mean_prompt + load.mean_answer))
    step_ms = status["plan"]["margin"] * slo.gap_ms
    return capacity_rps(_model(status["model"]), step_ms, most, load.mean_prompt, load.mean_answer)


def _model(said: Mapping[str, Any]) -> StepModel:
    return of_ms(said["base_ms"], said["prefill_ms"], said["decode_ms"], said["kv_ms"])
