"""`sits-adapter`: serves the engine contract for an engine that has an interface of its own."""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import click

from controller.adapters.driver import AdapterError, EngineChangedError
from controller.adapters.kinds import KINDS, setting_problems
from controller.adapters.session import Place, Tell, serve, undo_left
from controller.adapters.undo import UndoError, UndoFile
from controller.kept_file import SUFFIX
from controller.log_output import set_up_logging
from controller.policy_model import Adapter
from controller.policy_tables import key_infos

LOCK_WAIT_S: Final = 2.0
"""How long `--undo` waits for an adapter that is just ending."""

_SETTINGS: Final = {info.name: info.meaning for info in key_infos(Adapter) if info.name != "kind"}


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each setting of the policy's adapters."""
    for name, meaning in reversed(_SETTINGS.items()):
        command = click.option(f"--{name.replace('_', '-')}", help=meaning)(command)
    return command


@click.command(context_settings={"show_default": True})
@click.argument("kind", required=False, type=click.Choice(list(KINDS)))
@_setting_options
@click.option(
    "--admin-socket",
    type=click.Path(path_type=Path),
    help="Unix socket where the engine contract is served.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    help="File of the stats page, best on a tmpfs such as /run; none without this.",
)
@click.option(
    "--undo-file",
    type=click.Path(path_type=Path),
    help=f"What to write back should this process be killed; best NAME{SUFFIX} in /run.",
)
@click.option(
    "--undo",
    "undo_dir",
    type=click.Path(path_type=Path),
    help=f"Only write back what the undo files (*{SUFFIX}) in this directory name.",
)
@click.option(
    "--supervised",
    is_flag=True,
    help="End when standard input ends; tell each state as a line of JSON on standard output.",
)
def main(
    kind: str | None,
    admin_socket: Path | None,
    page: Path | None,
    undo_file: Path | None,
    undo_dir: Path | None,
    supervised: bool,
    **options: Any,
) -> None:
    """Serve the engine contract for an engine of KIND, until SIGTERM or SIGINT.

    At the end, and at the start after it was killed, the engine gets its own values back.
    """
    set_up_logging("sits-adapter")
    if undo_dir is not None:
        lines = list(undo_all(undo_dir))
        for line, _ in lines:
            click.echo(line)
        sys.exit(0 if all(done for _, done in lines) else 1)
    if kind is None or admin_socket is None or undo_file is None:
        raise click.UsageError("KIND, --admin-socket and --undo-file are needed")
    settings = {name: options[name] for name in _SETTINGS if options.get(name) is not None}
    problems = [
        f"--{name.replace('_', '-')}: {what}" for name, what in setting_problems(kind, settings)
    ]
    if problems:
        raise click.UsageError("; ".join(problems))
    stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.eventfd_write(stop, 1))
    place = Place(kind, settings, admin_socket, page, undo_file)
    try:
        done = serve(place, [stop, *([0] if supervised else [])], _teller(supervised))
    except UndoError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if done else 1)


def undo_all(directory: Path, but: Collection[str] = ()) -> Iterator[tuple[str, bool]]:
    """Write back what the undo files in `directory` name: what became of each, and if it is done.

    Files of engines in `but` are left: an adapter will see to them.
    An adapter that still runs after `LOCK_WAIT_S` has its file, and nothing is done about it.
    """
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        if name in but:
            continue
        try:
            with closing(_held(path)) as file:
                said = undo_left(file)
            yield f"adapter of {name}: {said or 'nothing was left'}", True
        except (AdapterError, EngineChangedError, UndoError) as error:
            yield f"adapter of {name}: could not write the start values back: {error}", False


def _held(path: Path) -> UndoFile:
    ends_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return UndoFile(path)
        except UndoError:
            if time.monotonic() >= ends_s:
                raise
            time.sleep(0.02)


def _teller(supervised: bool) -> Tell:
    """Says each new state once; a supervisor that does not read is not waited for."""
    last: list[tuple[str, str]] = []
    if supervised:
        fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_NONBLOCK)

    def tell(state: str, detail: str) -> None:
        if last == [(state, detail)]:
            return
        last[:] = [(state, detail)]
        line = (
            json.dumps({"state": state, "detail": detail}) if supervised else f"{state}: {detail}"
        )
        with suppress(OSError):
            os.write(1, line.encode() + b"\n")

    return tell


if __name__ == "__main__":
    main()
