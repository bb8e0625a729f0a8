"""`sitsctl support`: a bundle for whoever is to help."""

import io
import json
import os
import time
from pathlib import Path
from typing import Final

import click

from agent.cli import SOCKET, WRONG, agent_client, fail
from agent.progress import Progress

_NOTE: Final = """What `sitsctl support` collected, for a report of a problem.

Taken out: prompts and answers (sits never has them), secrets of the policy, request paths that are
no known call, clients' addresses. Left in: names of engines, neighbours, commands and control
groups, paths of sockets. Look before you send it: tar -xzOf FILE | less
"""


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to. [default: sits-support-DATE.tar.gz]",
)
@SOCKET
def support(output: Path | None, socket_path: Path | None) -> None:
    """Write what a report of a problem needs into one file; secrets and clients are taken out.

    Without an agent that answers it has what this process sees. An existing file is not touched.
    """
    import tarfile

    from agent.support import ask, questions

    agent = agent_client(socket_path)
    files = {"README": _NOTE, "machine.json": _json(_machine())}
    asked = questions(agent)
    with Progress("asking", len(asked)) as progress:
        for name, question in asked.items():
            files[name] = _json(ask(question))
            progress()
    path = output or Path(time.strftime("sits-support-%Y%m%d-%H%M%S.tar.gz"))
    try:
        # whoever may not ask the agent shall not read what it said
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, text in files.items():
                content = text.encode(errors="backslashreplace")
                entry = tarfile.TarInfo(f"sits-support/{name}")
                entry.size, entry.mtime = len(content), int(time.time())
                bundle.addfile(entry, io.BytesIO(content))
    except OSError as error:
        fail(f"could not write '{path}': {(error.strerror or str(error)).lower()}", WRONG)
    click.echo(f"{path}: {len(files)} files; look before you send it: tar -xzOf {path} | less")


def _machine() -> dict[str, object]:
    """This machine, by what matters; not its name."""
    import platform
    from importlib.metadata import version

    from agent.sitsctl import probe_findings

    return {
        "sitsctl": version("sits"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "findings": probe_findings(),
    }


def _json(answer: object) -> str:
    return json.dumps(answer, indent=1, default=str) + "\n"
