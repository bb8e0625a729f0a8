"""What the demonstration found: as JSON, as a table, and whether its claims hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from demo.client import Lateness
from demo.stats import Comparison, PhaseFigures, Slo, Spread, percentile
from demo.trace import LengthScale, Load


@dataclass(frozen=True, slots=True)
class Phase:
    """One replay of the load. `figures` are the client's; `neighbour_cores` is what they used."""

    figures: PhaseFigures
    comparison: Comparison
    neighbour_cores: float
    late: Lateness
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """The controller's own times, as it reports them; None where it has none yet."""

    collect_us_p99: float | None
    decide_us_p99: float | None
    actuate_us_p99: float | None
    reaction_ms_p50: float | None

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Self:
        """From what sitsd's status says."""
        loop = status["loop"]
        if loop is None:
            return cls(None, None, None, None)
        return cls(
            loop["collect_us"]["p99"],
            loop["decide_us"]["p99"],
            loop["actuate_us"]["p99"],
            loop["reaction_ms"]["p50"],
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is told at the end."""

    unloaded: Slo
    slo: Slo
    capacity_rps: float
    lengths: LengthScale
    load: Load
    alone: Phase
    observe: Phase
    control: Phase
    loop: Loop
    accuracy: Comparison
    accuracy_late: Lateness
    accuracy_failed: int
    decisions: int
    left_behind: tuple[str, ...]
    took_s: float

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The replays, in their order."""
        return (self.alone, self.observe, self.control)

    @property
    def requests_failed(self) -> int:
        """Failed requests of all parts."""
        return self.accuracy_failed + sum(phase.figures.failed for phase in self.phases)

    @property
    def compared(self) -> Comparison:
        """The kernel's view against the client's, of all parts."""
        return sum((phase.comparison for phase in self.phases), self.accuracy)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON; docs of the keys are in the README."""
        under_load = self.observe.comparison + self.control.comparison
        return {
            "alone": _phase_dict(self.alone),
            "observe": _phase_dict(self.observe),
            "control": _phase_dict(self.control),
            "loop": _rounded(asdict(self.loop)),
            "accuracy": {
                "chunk_mismatch": self.compared.mismatched,
                **_errors(self.accuracy),
                "streams": self.compared.streams,
                "idle_streams": self.accuracy.streams,
                "under_load": _errors(under_load),
                "client_late": _rounded(asdict(self.accuracy_late)),
            },
            "decisions": self.decisions,
            "requests_failed": self.requests_failed,
            "slo": asdict(self.slo),
            "unloaded": _rounded(asdict(self.unloaded)),
            "load": _rounded(
                {
                    "capacity_rps": self.capacity_rps,
                    "requests_per_s": self.load.requests_per_s,
                    "window_s": self.load.window_s,
                    "trace_speed": self.load.speed,
                    "length_divisor": self.lengths.divisor,
                    "max_prompt_tokens": self.lengths.max_prompt_tokens,
                    "max_answer_tokens": self.lengths.max_answer_tokens,
                }
            ),
            "left_behind": list(self.left_behind),
            "took_s": round(self.took_s, 1),
            "claims_broken": broken_claims(self),
        }


def broken_claims(report: Report) -> list[str]:
    """What the demonstration is to show and did not; a sentence each."""
    observe, control = report.observe.figures, report.control.figures
    broken = []
    if report.requests_failed:
        errors = {error for phase in report.phases for error in phase.errors}
        broken.append(f"{report.requests_failed} requests failed: {'; '.join(sorted(errors))}")
    if report.compared.mismatched:
        broken.append(
            f"the kernel's chunk counts differ from the client's for {report.compared.mismatched}"
            f" of {report.compared.streams} streams"
        )
    if control.slo_attainment <= observe.slo_attainment:
        broken.append(
            f"control met the SLO for {control.slo_attainment:.1%} of requests, no more than"
            f" observe with {observe.slo_attainment:.1%}"
        )
    if control.goodput_rps < observe.goodput_rps:
        broken.append(
            f"goodput in control was {control.goodput_rps:.2f} requests/s, below observe's"
            f" {observe.goodput_rps:.2f}"
        )
    if report.left_behind:
        broken.append(f"after control {', '.join(report.left_behind)}")
    return broken


def render(report: Report) -> Group:
    """The report for a terminal."""
    return Group(_phases_table(report), Text(), *map(Text, _sentences(report)))


def _phases_table(report: Report) -> Table:
    slo = report.slo
    table = Table(title="the same load three times", title_justify="left")
    table.add_column("by the client")
    table.add_column("alone", justify="right", style="dim")
    table.add_column("observe", justify="right")
    table.add_column("control", justify="right", style="bold")

    def row(name: str, value: Callable[[Phase], str]) -> None:
        table.add_row(name, *map(value, report.phases))

    row("requests that meet the SLO", lambda p: f"{p.figures.slo_attainment:.1%}")
    row("good requests/s", lambda p: f"{p.figures.goodput_rps:.2f}")
    row(f"TTFT P50 / P99, ms (SLO {slo.ttft_ms:g})", lambda p: _pair(p.figures.ttft_ms))
    row(f"gap P50 / P99, ms (SLO {slo.gap_ms:g})", lambda p: _pair(p.figures.gap_ms))
    row("requests / failed", lambda p: f"{p.figures.requests} / {p.figures.failed}")
    row("neighbours' CPU, cores", lambda p: f"{p.neighbour_cores:.2f}")
    row("client late: sent, ms P99", lambda p: _figure(p.late.arrival_ms.p99))
    row("client late: read, µs P99", lambda p: _figure(p.late.read_us.p99))
    return table


def _sentences(report: Report) -> Sequence[str]:
    loop, load, lengths = report.loop, report.load, report.lengths
    errors = _errors(report.accuracy)
    late = report.accuracy_late
    sentences = [
        f"load: {len(load.requests)} requests of the Azure code trace at {load.speed:.2f} × its"
        f" speed, lengths ÷ {lengths.divisor:g}, {load.requests_per_s:.1f} requests/s of a"
        f" capacity of {report.capacity_rps:.1f}",
        f"loop: collect {_figure(loop.collect_us_p99)} µs, decide {_figure(loop.decide_us_p99)} µs,"
        f" actuate {_figure(loop.actuate_us_p99)} µs (P99); reaction"
        f" {_figure(loop.reaction_ms_p50)} ms (P50); {report.decisions} decisions",
        f"kernel against client: {report.compared.mismatched} of {report.compared.streams} streams"
        f" differ in chunks; idle, P99: TTFT {_figure(errors['ttft_error_ms_p99'])} ms, gap"
        f" {_figure(errors['gap_error_ms_p99'])} ms apart (the client read"
        f" {_figure(late.read_us.p99)} µs late)",
    ]
    if not (late.realtime and report.control.late.realtime):
        sentences.append("the client got no real-time priority: its own figures may be late")
    return sentences


def _phase_dict(phase: Phase) -> dict[str, Any]:
    figures = phase.figures
    return _rounded(
        {
            "slo_attainment": figures.slo_attainment,
            "ttft_ms": asdict(figures.ttft_ms),
            "gap_ms": asdict(figures.gap_ms),
            "goodput_rps": figures.goodput_rps,
            "requests": figures.requests,
            "failed": figures.failed,
            "neighbour_cores": phase.neighbour_cores,
            "chunk_mismatch": phase.comparison.mismatched,
            "client_late": asdict(phase.late),
        }
    )


def _errors(comparison: Comparison) -> dict[str, float | None]:
    return _rounded(
        {
            "ttft_error_ms_p99": percentile(comparison.ttft_error_ms, 0.99),
            "gap_error_ms_p99": percentile(comparison.gap_error_ms, 0.99),
        }
    )


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with every float to four decimals: more is noise."""
    rounded: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            rounded[name] = _rounded(value)
        else:
            rounded[name] = round(value, 4) if isinstance(value, float) else value
    return rounded


def _pair(spread: Spread) -> str:
    return f"{_figure(spread.p50)} / {_figure(spread.p99)}"


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
