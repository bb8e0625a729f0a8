"""The command `sitsctl`: asks the agent over its admin socket, and prints for people or as JSON."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from agent.cli import (
    DEFAULT_PIN_DIR,
    JSON,
    SOCKET,
    UNREACHABLE,
    WRONG,
    Json,
    agent_client,
    agent_setting,
    asking,
    plain_console,
    print_answer,
    print_for_people,
    print_json,
    readable,
)
from agent.client import ClientError

# What not every command needs is imported where it is used: rich, the policy, the probe.

ELSEWHERE: Final[Mapping[str, str]] = {
    "conformance": "agent.conformance_command:conformance",
    "engine-plugin": "agent.engine_plugin_command:engine_plugin",
    "gpu": "agent.sitsctl_gpu:gpu",
    "inject": "agent.sitsctl_mode:inject",
    "metrics-user": "agent.metrics_user_command:metrics_user",
    "mode": "agent.sitsctl_mode:mode",
    "neighbours": "agent.sitsctl_neighbours:neighbours",
    "pause": "agent.sitsctl_mode:pause",
    "policy": "agent.sitsctl_policy:policy",
    "release": "agent.sitsctl_hand:release",
    "replay": "agent.replay_command:replay",
    "resume": "agent.sitsctl_mode:resume",
    "set": "agent.sitsctl_hand:set_knobs",
    "simulate": "agent.simulate_command:simulate",
    "support": "agent.support_command:support",
    "trace": "agent.sitsctl_trace:trace",
}
"""Commands with modules of their own, imported when they are asked for."""


class Commands(click.Group):
    """The commands of this module and those of `ELSEWHERE`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All their names."""
        return sorted({*super().list_commands(ctx), *ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them, None where there is none of that name."""
        if cmd_name in ELSEWHERE and cmd_name not in self.commands:
            module, _, name = ELSEWHERE[cmd_name].partition(":")
            self.add_command(getattr(import_module(module), name), cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 all is well; 1 something is wrong (status: there are problems; doctor:"
    " something is missing; a policy does not hold; you may read but not operate); 2 the command"
    " was not understood or not possible; 3 the agent could not be reached.",
)
@click.version_option(package_name="sits", prog_name="sitsctl")
@SOCKET
def main(socket_path: Path | None) -> None:
    """Ask the sits agent what it sees, why streams are slow, and what it does about it.

    Where there is only one engine, ENGINE may be left out. --socket may also stand before the
    command.
    """


@main.command()
@SOCKET
@JSON
def status(socket_path: Path | None, as_json: bool) -> None:
    """The whole agent at a glance. Exit code 1 if it has problems."""
    with asking(socket_path) as agent:
        answer = agent.status()
    print_answer(answer, as_json, lambda show, shown: show.status(shown))
    sys.exit(WRONG if answer.get("problems") else 0)


@main.command()
@SOCKET
@JSON
def engines(socket_path: Path | None, as_json: bool) -> None:
    """Every engine in full: latency against its SLO, load, cause, knobs, model, totals."""
    with asking(socket_path) as agent:
        answer = agent.engines()
    print_answer(answer, as_json, lambda show, shown: show.engines(shown))


@main.command()
@click.argument("engine", required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--after", type=click.IntRange(0), help="Those that ended after this SEQ.")
@click.option("--slowest", is_flag=True, help="Of the last 1000 the slowest, worst at the end.")
@SOCKET
@JSON
def streams(
    engine: str | None,
    limit: int,
    after: int | None,
    slowest: bool,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """The streams that ended last, newest at the end; of ENGINE, or of all."""
    if slowest and after is not None:
        raise click.UsageError("--slowest does not go with --after")
    with asking(socket_path) as agent, readable():
        answer = agent.streams(engine, after, 1000 if slowest else limit)
        if slowest:
            answer["streams"] = sorted(answer["streams"], key=_slowness)[-limit:]
    print_answer(answer, as_json, lambda show, shown: show.streams(shown))


@main.command()
@click.argument("engine", required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=30,
    show_default=True,
    help="How far to look back.",
)
@SOCKET
@JSON
def explain(engine: str | None, seconds: float, socket_path: Path | None, as_json: bool) -> None:
    """Why ENGINE was slow just now, who was to blame, and what was done about it."""
    with asking(socket_path) as agent:
        answer = agent.explain(engine, seconds)
    print_answer(answer, as_json, lambda show, shown: show.explain(shown))


@main.command()
@click.argument("engine", required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 60),
    default=30,
    show_default=True,
    help="How far to look back.",
)
@click.option(
    "--factor",
    type=click.FloatRange(1, 1000),
    help="Growth within 100 ms that counts as backpressure. [default: 1.5]",
)
@click.option(
    "--floor",
    type=click.FloatRange(0, 1e9),
    help="Queue up to which nothing does. [default: each stage's own]",
)
@SOCKET
@JSON
def stages(
    engine: str | None,
    seconds: float,
    factor: float | None,
    floor: float | None,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """The stages of ENGINE: what flows through each, what queues, which holds requests up."""
    with asking(socket_path) as agent:
        answer = agent.stages(engine, seconds, factor, floor)

    def render(_: object, shown: Json) -> object:
        from agent.show_stages import stages

        return stages(shown)

    print_answer(answer, as_json, render)


@main.command()
@click.argument("engine", required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--before", type=click.IntRange(1), help="Decisions older than this id.")
@click.option("--events", is_flag=True, help="Events (starts, stops, modes …), not decisions.")
@click.option("--reasons", is_flag=True, help="Why each decision was taken, too.")
@click.option(
    "--worst",
    type=click.IntRange(1, 1000),
    is_flag=False,
    flag_value=20,
    metavar="[N]",
    help="The N decisions with the worst outcome, worst at the end. [default: 20]",
)
@SOCKET
@JSON
def journal(
    engine: str | None,
    limit: int,
    before: int | None,
    events: bool,
    reasons: bool,
    worst: int | None,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """What was decided and what came of it, newest at the end; about ENGINE, or about all."""
    if worst is not None and (events or before is not None):
        raise click.UsageError("--worst goes with neither --events nor --before")
    with asking(socket_path) as agent:
        if worst is None:
            answer = agent.journal(limit, engine, before)
        else:
            answer = agent.journal(worst, engine, order="worst")
    print_answer(
        answer,
        as_json,
        lambda show, shown: (
            show.events(shown["events"])
            if events
            else show.decisions(
                shown["decisions"],
                reasons=reasons,
                nothing="no decision has an outcome yet" if worst is not None else "no decisions",
            )
        ),
    )


@main.command()
@SOCKET
@JSON
def doctor(socket_path: Path | None, as_json: bool) -> None:
    """What this kernel allows, what is missing, what that costs; limits hit, programs run.

    As the agent sees it; if that does not answer, as this process does. Exit code 1 if something
    is missing, 3 if only the agent is.
    """
    try:
        answer, trouble = agent_client(socket_path).doctor(), ""
    except ClientError as error:
        answer, trouble = {"findings": probe_findings()}, str(error)
    with readable():
        findings = list(answer["findings"])
        missing = [item for item in findings if not item["ok"]]
    agent = {
        "name": "sitsd",
        "ok": not trouble,
        "detail": trouble or "answers; the findings are its own",
        "cost": "nothing is measured and nothing is held; the findings are this process's",
    }
    if trouble:
        answer = {"findings": [*findings, agent]}
    print_answer(
        answer,
        as_json,
        lambda show, shown: show.doctor(shown, shown["findings"] + ([] if trouble else [agent])),
    )
    sys.exit(WRONG if missing else UNREACHABLE if trouble else 0)


@main.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=0.5,
    show_default=True,
    help="Seconds between frames.",
)
@click.option("--once", is_flag=True, help="One frame, printed.")
@SOCKET
@JSON
def top(interval: float, once: bool, socket_path: Path | None, as_json: bool) -> None:
    """A live view of engines, neighbours and decisions; q quits, s sorts, space holds.

    Where the output is no terminal it is one frame; with --json, the answer of status, once.
    """
    with asking(socket_path) as agent:
        if as_json:
            print_json(agent.status())
            return
        from agent.top import look, watch

        console = plain_console()
        if once or not sys.stdout.isatty() or console.is_dumb_terminal:
            with readable():
                print_for_people(console, look(agent))
            return
        with readable():
            try:
                watch(agent, console, interval)
            except KeyboardInterrupt:
                return


@main.command()
@SOCKET
@JSON
def reload(socket_path: Path | None, as_json: bool) -> None:
    """Have sitsd read its policy file again, as a SIGHUP does; whole or not at all."""
    from agent.sitsctl_policy import print_policy_answer

    with asking(socket_path) as agent:
        answer = agent.policy_reload()
    print_policy_answer(answer, as_json)


def _slowness(stream: Json) -> float:
    return max(stream["ttft_ms"] or 0.0, stream["gap_max_ms"] or 0.0)


def probe_findings() -> list[Json]:
    """What this process finds of the kernel and of its own rights."""
    from dataclasses import asdict

    from bpf.features import findings, open_libbpf, probe

    pin_dir = agent_setting("pin_dir", DEFAULT_PIN_DIR)
    return [asdict(item) for item in findings(probe(open_libbpf()), pin_dir)]


if __name__ == "__main__":
    main()
