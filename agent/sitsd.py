"""`sitsd`: the command that starts the agent, checks a policy, or clears up after a dead agent."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from agent.adapters import undo_left
from bpf.loader import unload
from controller.limits.undo import UNDO_NAME, describe, run_undo
from controller.log_output import set_up_logging
from controller.mps.undo import undo_all as undo_mps
from controller.policy import PolicyError, load_policy
from controller.policy_model import Policy

POLICY_PATH: Final = Path("/etc/sits/policy.toml")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    default=POLICY_PATH,
    show_default=True,
    help="The policy file.",
)
@click.option("--check", is_flag=True, help="Check the policy and end.")
@click.option("--undo", is_flag=True, help="Undo what a dead agent left, and end.")
@click.option("--unload", "unloads", is_flag=True, help="Remove the pinned BPF programs, and end.")
@click.version_option(package_name="sits")
def main(policy_path: Path, check: bool, undo: bool, unloads: bool) -> None:
    """Watch, and where the policy says so retune, the LLM inference engines of this machine."""
    set_up_logging("sitsd")
    try:
        policy = load_policy(policy_path)
        if check:
            click.echo(f"{policy_path}: good")
        elif undo:
            for line in describe(run_undo(policy.agent.run_dir / UNDO_NAME)):
                click.echo(line)
            for line in undo_left(policy.agent.adapters_dir):
                click.echo(line)
            for line, _ in undo_mps(policy.agent.mps_dir):
                click.echo(line)
        elif unloads:
            unload(policy.agent.pin_dir)
        else:
            _serve(policy, policy_path)
    except (PolicyError, OSError) as error:
        raise SystemExit(f"sitsd: {error}") from None


def _serve(policy: Policy, policy_path: Path) -> None:
    # what undoes the limits of an agent that was killed is another run of this command, which
    # would need longer to read the daemon's modules than for all it does
    from controller.start import start_controller

    first = None
    with suppress(OSError):  # it is told of when one is needed and there is none
        first = start_controller()  # reads its modules while we read the daemon's
    from agent.daemon import Daemon, StartError

    try:
        daemon = Daemon(policy, policy_path, first)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: daemon.stop())
        signal.signal(signal.SIGHUP, lambda *_: daemon.reload())
        signal.signal(signal.SIGCHLD, lambda *_: daemon.wake())
        daemon.run()
    except StartError as error:
        raise SystemExit(f"sitsd: {error}") from None


if __name__ == "__main__":
    main()
