"""`python -m controller.simulate`: compare controls on a trace."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from controller.policy_model import Engine, Match, Slo
from controller.simulate.compare import CONTROLS, LABEL, Outcome, Setting, best, compare
from controller.simulate.virtual_engine import EXAMPLE, EngineSpec, StepTimes
from controller.simulate.workload import Scale, TraceError, read_trace, tokens_per_s


@click.command(context_settings={"show_default": True})
@click.option("--trace", type=click.Path(path_type=Path), required=True)
@click.option("--requests", default=4000, help="Of the trace, from its start.")
@click.option("--speed", default=1.0, help="Arrivals come so many times as fast.")
@click.option("--divisor", default=1.0, help="Of all lengths.")
@click.option("--max-prompt", default=1 << 20)
@click.option("--max-answer", default=1 << 20)
@click.option("--model", default="4,0.04,0.2,1e-5", help="ms: base,prefill,decode,kv")
@click.option("--noise", default=0.0)
@click.option("--between-ms", default=0.0)
@click.option("--kv-tokens", default=EXAMPLE.kv_tokens)
@click.option("--max-running", default=EXAMPLE.max_running)
@click.option("--max-batched-tokens", default=EXAMPLE.max_batched_tokens)
@click.option("--ttft-ms", default=2000.0)
@click.option("--gap-ms", default=50.0)
@click.option("--controls", default=",".join(CONTROLS))
@click.option("--seeds", default=1)
@click.option("--json", "as_json", is_flag=True)
def main(**options: Any) -> None:
    """Compare controls on the same arrivals. Everything it prints is simulated."""
    base, prefill, decode, kv = (float(part) for part in options["model"].split(","))
    spec = EngineSpec(
        StepTimes(base, prefill, decode, kv, options["noise"], options["between_ms"]),
        kv_tokens=options["kv_tokens"],
        max_running=options["max_running"],
        max_batched_tokens=options["max_batched_tokens"],
        long_prefill_tokens=options["max_batched_tokens"],
    )
    scale = Scale(
        options["speed"], options["divisor"], options["max_prompt"], options["max_answer"]
    )
    try:
        arrivals = scale.apply(read_trace(options["trace"], options["requests"]))
    except TraceError as error:
        sys.exit(str(error))
    policy = Engine("simulated", Match("port", 1), slo=Slo(options["ttft_ms"], options["gap_ms"]))
    setting = Setting(spec, policy, seeds=tuple(range(options["seeds"])))
    if not options["as_json"]:
        click.echo(
            f"{LABEL}: {len(arrivals)} requests in {arrivals[-1].arrival_s:.0f} s,"
            f" {tokens_per_s(arrivals):.0f} tokens/s"
        )
    outcomes = compare(
        arrivals,
        setting,
        options["controls"].split(","),
        (lambda _: None) if options["as_json"] else _tell,
    )
    ours, static = best(outcomes, "sits"), best(outcomes, "static")
    ratio = ours.goodput_rps / static.goodput_rps if ours and static else None
    if options["as_json"]:
        answer = {
            "label": LABEL,
            "outcomes": [each.as_dict() for each in outcomes],
            "goodput_ratio_vs_best_static": ratio,
        }
        click.echo(json.dumps(answer))
    elif ratio is not None and static is not None:
        click.echo(f"{LABEL}: sits {ratio:.3f} x the best static, {dict(static.point)}")


def _tell(outcome: Outcome) -> None:
    run = outcome.runs[0]
    point = " ".join(f"{value:g}" for value in outcome.point.values())
    click.echo(
        f"{LABEL}: {outcome.control:8}{point:10} goodput {outcome.goodput_rps:7.3f}/s"
        f" attainment {outcome.attainment:.3f}  TTFT {_ms(run.ttft_ms.p50)}/{_ms(run.ttft_ms.p99)}"
        f"  gap {_ms(run.gap_ms.p50)}/{_ms(run.gap_ms.p99)} ms  {run.tokens_per_s:.0f} tokens/s"
        f"  {run.changes_per_min:.1f} changes/min"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    main()
