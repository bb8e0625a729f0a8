"""The commands of sitsctl that need no agent: replay of a journal, and simulation.

What they do is imported when they run: no other command is to pay for it.
"""

import re
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from agent.cli import USAGE, Json, agent_setting, fail, plain_console, print_for_people, print_json

if TYPE_CHECKING:
    from controller.journal_rows import Recorded
    from controller.policy_model import Engine, Policy
    from controller.recording import Inputs
    from controller.simulate.compare import Outcome, Setting
    from controller.simulate.virtual_engine import EngineSpec, StepTimes

STATE_DIR: Final = Path("/var/lib/sits")
JOURNAL_NAME: Final = "journal.db"

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LATEST_NS: Final = (1 << 63) - 1
_EVERYTHING_NS: Final = -_LATEST_NS
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _since(_: click.Context, param: click.Parameter, value: str | None) -> int:
    """A moment as Unix time in ns: how long ago (90s, 10m, 2h, 1d), or a local date and time."""
    if value is None:
        return 0
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", value):
        ago_s = float(found[1]) * _UNITS_S[found[2]]
        return time.time_ns() - int(ago_s * 1e9)
    try:
        return min(int(datetime.fromisoformat(value).timestamp() * 1e9), _LATEST_NS)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither like 10m (s, m, h, d) nor like 2026-03-04T09:40", param=param
        ) from None


@click.command()
@click.argument("journal", required=False, type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Decide under this policy. [default: as it was then]",
)
@click.option("--engine", metavar="NAME", help="Only this engine.")
@click.option(
    "--since",
    callback=_since,
    metavar="WHEN",
    help="Only from then on: 90s, 10m, 2h or 1d ago, or 2026-03-04T09:40.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0, 100_000),
    default=20,
    show_default=True,
    help="Rows shown, the newest.",
)
@click.option("--all", "every", is_flag=True, help="Rows that are the same, too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def replay(
    journal: Path | None,
    policy_path: Path | None,
    engine: str | None,
    since: int,
    limit: int,
    every: bool,
    as_json: bool,
) -> None:
    """What other settings would have decided on what JOURNAL recorded; needs no agent.

    JOURNAL is the agent's own if left out. Each tick is decided anew from the state of then; what
    the decisions would have done is not known. The SLO that the kernel counted against stays.
    """
    from controller.replay import LABEL, summary_of
    from controller.replay import replay as again

    path = journal or agent_setting("state_dir", STATE_DIR) / JOURNAL_NAME
    policy = _policy(policy_path)
    recorded = _recorded(path, engine, since)
    known = {each.name for each in policy.engines} if policy is not None else set()
    names = {each.engine for each in recorded}
    if policy is not None and not names & known:
        fail(f"policy '{policy_path}' names none of the engines recorded: {_listed(names)}", USAGE)
    found = list(again(recorded, policy))
    rows = [row for row in found if row is not None]
    shown = [row for row in rows if every or not row.equal]
    answer: Json = {
        "label": LABEL,
        "journal": str(path),
        "policy": str(policy_path) if policy_path is not None else None,
        "from_wall_ns": rows[0].wall_ns if rows else None,
        "to_wall_ns": rows[-1].wall_ns if rows else None,
        "unreadable": len(found) - len(rows),
        "not_in_policy": sorted(names - known) if policy is not None else [],
        "summary": summary_of(rows).as_dict(),
        "rows": [row.as_dict() for row in shown[len(shown) - min(limit, len(shown)) :]],
    }
    _print(answer, as_json, "replay")


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
    from controller.simulate.compare import CONTROLS, LABEL, best, compare, plain_setting
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
    outcomes = compare(arrivals, setting, names)
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
    _print(answer, as_json, "simulation")


def _ratio(ours: "Outcome | None", other: "Outcome | None") -> float | None:
    if ours is None or other is None or other.goodput_rps == 0:
        return None
    return ours.goodput_rps / other.goodput_rps


def _setting(given: Json) -> "Setting":
    from controller.policy_model import Controller
    from controller.simulate.compare import Setting

    policy = _policy(given["policy_path"])
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

    recorded = _recorded(given["journal"], given["engine"], 0)
    names = {each.engine for each in recorded}
    if len(names) != 1:
        raise click.UsageError(f"--engine: {_listed(names)}")
    try:
        return [inputs_of(each.inputs) for each in recorded]
    except (KeyError, TypeError, ValueError) as error:
        fail(f"could not read journal '{given['journal']}': {error}", USAGE)


def _engine(policy: "Policy | None", recorded: "list[Inputs]", given: Json) -> "Engine":
    """The engine's policy: the one named, or the only one there is, with the SLO that was given.

    Without a policy the SLO is the one recorded last.
    """
    from dataclasses import replace

    from controller.policy_model import Engine, Match

    engine = Engine("simulated", Match("port", 1))
    if policy is not None:
        named = [each for each in policy.engines if given["engine"] in (None, each.name)]
        if len(named) != 1:
            names = {each.name for each in policy.engines}
            raise click.UsageError(f"--engine: {_listed(names) if names else 'there is none'}")
        (engine,) = named
    elif recorded:
        engine = replace(engine, slo=recorded[-1].slo)
    slo = {name: given[name] for name in ("ttft_ms", "gap_ms") if given[name] is not None}
    return replace(engine, slo=replace(engine.slo, **slo))


def _spec(given: Json, recorded: "list[Inputs]") -> "EngineSpec":
    """The engine simulated: recorded or by its step times, with what else was given."""
    from dataclasses import replace

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


def _recorded(path: Path, engine: str | None, since_ns: int) -> "list[Recorded]":
    """What a journal recorded; ends the command if that is nothing."""
    from controller.journal import JournalError, JournalReader

    try:
        with closing(JournalReader(path)) as reader:
            found = list(reader.recorded(engine, since_ns or _EVERYTHING_NS))
            if not found and engine is not None:
                names = {each.engine for each in reader.recorded()}
                if names and engine not in names:
                    fail(f"journal '{path}' has no engine '{engine}': {_listed(names)}", USAGE)
    except JournalError as error:
        fail(str(error), USAGE)
    if not found:
        when = " since then" if since_ns else ""
        fail(f"journal '{path}' has nothing to replay{when}: no inputs were recorded", USAGE)
    return found


def _policy(path: Path | None) -> "Policy | None":
    from controller.policy import PolicyError, load_policy

    if path is None:
        return None
    try:
        return load_policy(path)
    except PolicyError as error:
        fail(str(error), USAGE)


def _listed(names: set[str]) -> str:
    return f"there is {', '.join(sorted(names))}"


def _print(answer: Json, as_json: bool, what: str) -> None:
    if as_json:
        print_json(answer)
        return
    from agent import show_offline
    from agent.words import printable

    render = show_offline.replay if what == "replay" else show_offline.simulation
    print_for_people(plain_console(), render(printable(answer)))
