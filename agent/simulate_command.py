"""`sitsctl simulate`: the same requests under several controls, on an engine that only counts."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agent.cli import USAGE, Json, fail, plain_console, print_for_people, print_json
from agent.offline import listed, policy_at, recorded_in
from agent.progress import Progress

if TYPE_CHECKING:
    from controller.policy_model import Engine, Policy
    from controller.recording import Inputs
    from controller.simulate.compare import Outcome, Setting
    from controller.simulate.virtual_engine import EngineSpec, StepTimes

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _engine_options(command: _Command) -> _Command:
    """What engine is simulated."""
    for option in (
        click.option(
            "--model",
            metavar="A,B,C,D",
            help="Step times in ms: a + b·prompt token + c·sequence + d·cached token.",
        ),
        click.option(
            "--journal",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The engine that this journal recorded: step times, knobs, cache.",
        ),
        click.option(
            "--noise",
            type=click.FloatRange(0, 2),
            metavar="SHARE",
            help="By about how much steps differ from that. [default: 0, or as recorded]",
        ),
        click.option(
            "--between-ms",
            type=click.FloatRange(0, 1000),
            help="What passes between two steps. [default: 0, or as recorded]",
        ),
        click.option("--kv-tokens", type=click.IntRange(1), help="Size of the KV cache."),
        click.option("--max-running", type=click.IntRange(1), help="The start value."),
        click.option("--max-batched-tokens", type=click.IntRange(1), help="The start value."),
        click.option("--max-queued", type=click.IntRange(1), help="The start value."),
    )[::-1]:
        command = option(command)
    return command


def _load_options(command: _Command) -> _Command:
    """What arrives, and what it is owed."""
    for option in (
        click.option(
            "--requests",
            type=click.IntRange(1),
            default=4000,
            show_default=True,
            help="So many of the trace, from its start.",
        ),
        click.option(
            "--speed",
            type=click.FloatRange(0, min_open=True),
            default=1.0,
            show_default=True,
            help="Arrivals come so many times as fast.",
        ),
        click.option(
            "--divisor",
            type=click.FloatRange(0, min_open=True),
            default=1.0,
            show_default=True,
            help="All lengths are divided by it.",
        ),
        click.option("--max-prompt", type=click.IntRange(1), help="Longer prompts are cut."),
        click.option("--max-answer", type=click.IntRange(1), help="Longer answers are cut."),
        click.option(
            "--policy",
            "policy_path",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="SLO, floors, relegation and the controller's settings from here.",
        ),
        click.option("--engine", metavar="NAME", help="Which one of the policy and the journal."),
        click.option("--ttft-ms", type=click.FloatRange(1), help="This SLO instead."),
        click.option("--gap-ms", type=click.FloatRange(1), help="This SLO instead."),
    )[::-1]:
        command = option(command)
    return command


@click.command()
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Requests: arrival_s,prompt_tokens,answer_tokens, or the Azure or Mooncake form.",
)
@_load_options
@_engine_options
@click.option("--controls", metavar="LIST", help="Only these. [default: all]")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Runs of each, with other noise.",
)
@click.option("--all", "every", is_flag=True, help="Every static point, not only the best.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def simulate(trace: Path, every: bool, as_json: bool, **given: Any) -> None:
    """The same requests under engine defaults, static points, AIMD and our control; simulated.

    No engine runs: step times come from --model, or from what --journal recorded. The decisions are
    the controller's own.
    """
    from controller.simulate.compare import (
        CONTROLS,
        GRIDS,
        LABEL,
        best,
        compare,
        grid,
        plain_setting,
    )
    from controller.simulate.workload import Scale, TraceError, read_trace, tokens_per_s

    names = given["controls"].split(",") if given["controls"] else list(CONTROLS)
    if strange := [name for name in names if name not in CONTROLS]:
        raise click.BadParameter(
            f"{strange[0]!r} is none of {', '.join(CONTROLS)}", param_hint="--controls"
        )
    try:
        longest = 1 << 30
        scale = Scale(
            given["speed"],
            given["divisor"],
            given["max_prompt"] or longest,
            given["max_answer"] or longest,
        )
        arrivals = scale.apply(read_trace(trace, given["requests"]))
    except TraceError as error:
        fail(str(error), USAGE)
    setting = _setting(given)
    whole = sum(len(grid(setting.spec)) if name in GRIDS else 1 for name in names)
    with Progress("simulating", whole) as progress:
        outcomes = compare(arrivals, setting, names, progress)
    ours = best(outcomes, "sits")
    answer: Json = {
        "label": LABEL,
        "trace": str(trace),
        "requests": len(arrivals),
        "seconds": arrivals[-1].arrival_s,
        "asked_tokens_per_s": tokens_per_s(arrivals),
        "setting": plain_setting(setting),
        "outcomes": [each.as_dict() for each in outcomes],
        "goodput_ratio_vs_best_static": _ratio(ours, best(outcomes, "static")),
        "goodput_ratio_vs_best_static_relegation": _ratio(
            ours, best(outcomes, "static-relegation")
        ),
    }
    if not every and not as_json:
        answer["outcomes"] = [
            each.as_dict() for each in outcomes if each is best(outcomes, each.control)
        ]
    if as_json:
        print_json(answer)
        return
    from agent import show_offline
    from agent.words import printable

    print_for_people(plain_console(), show_offline.simulation(printable(answer)))


def _ratio(ours: "Outcome | None", other: "Outcome | None") -> float | None:
    if ours is None or other is None or other.goodput_rps == 0:
        return None
    return ours.goodput_rps / other.goodput_rps


def _setting(given: Json) -> "Setting":
    from controller.policy_model import Controller
    from controller.simulate.compare import Setting

    policy = policy_at(given["policy_path"])
    recorded = _inputs(given) if given["journal"] is not None else []
    return Setting(
        _spec(given, recorded),
        _engine(policy, recorded, given),
        policy.controller if policy is not None else Controller(),
        tuple(range(given["seeds"])),
    )


def _inputs(given: Json) -> "list[Inputs]":
    """What the journal recorded of the engine, or of the only one in it."""
    from controller.recording import inputs_of

    recorded = recorded_in(given["journal"], given["engine"])
    names = {each.engine for each in recorded}
    if len(names) != 1:
        raise click.UsageError(f"--engine: {listed(names)}")
    found = []
    for each in recorded:
        with suppress(KeyError, TypeError, ValueError):  # of a version too different
            found.append(inputs_of(each.inputs))
    if not found:
        fail(f"journal '{given['journal']}' is of another version: nothing in it is known", USAGE)
    return found


def _engine(policy: "Policy | None", recorded: "list[Inputs]", given: Json) -> "Engine":
    """The engine's policy: the one named, or the only one there is, with the SLO that was given.

    Without a policy the SLO is the one recorded last.
    """
    from controller.policy_model import Engine, Match

    engine = Engine("simulated", Match("port", 1))
    if policy is not None:
        named = [each for each in policy.engines if given["engine"] in (None, each.name)]
        if len(named) != 1:
            names = {each.name for each in policy.engines}
            raise click.UsageError(f"--engine: {listed(names) if names else 'there is none'}")
        (engine,) = named
    elif recorded:
        engine = replace(engine, slo=recorded[-1].slo)
    slo = {name: given[name] for name in ("ttft_ms", "gap_ms") if given[name] is not None}
    return replace(engine, slo=replace(engine.slo, **slo))


def _spec(given: Json, recorded: "list[Inputs]") -> "EngineSpec":
    """The engine simulated: recorded or by its step times, with what else was given."""
    from controller.simulate.fitting import FitError, fit
    from controller.simulate.virtual_engine import EngineSpec

    if (given["model"] is None) == (given["journal"] is None):
        raise click.UsageError("needs one of --model and --journal")
    if recorded:
        try:
            spec = fit(recorded)
        except FitError as error:
            fail(f"could not fit an engine to journal '{given['journal']}': {error}", USAGE)
    else:
        spec = EngineSpec(_times(given["model"]))
    names = ("kv_tokens", "max_running", "max_batched_tokens", "max_queued")
    sizes = {name: given[name] for name in names if given[name] is not None}
    if given["max_batched_tokens"] is not None:
        sizes["long_prefill_tokens"] = given["max_batched_tokens"]
    own = {name: given[name] for name in ("noise", "between_ms") if given[name] is not None}
    return replace(spec, times=replace(spec.times, **own), **sizes)


def _times(text: str) -> "StepTimes":
    from controller.simulate.virtual_engine import StepTimes

    try:
        base, prefill, decode, kv = (float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not four numbers, as in 4,0.04,0.2,0.00001", param_hint="--model"
        ) from None
    if min(base, prefill, decode, kv) < 0 or base + prefill + decode == 0:
        raise click.BadParameter("step times are above zero", param_hint="--model")
    return StepTimes(base, prefill, decode, kv)
