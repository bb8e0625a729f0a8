"""`sitsctl engine-plugin`: writes the file that makes an engine speak the contract."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from agent.cli import WRONG, fail


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in of ours: the package it is here, its name there, and how it is switched on."""

    source: str
    package: str
    start: str
    policy: str


PLUGINS: Final = {
    "vllm": Plugin(
        "controller.plugins.vllm",
        "sits_vllm",
        """\
Start vLLM with it, as it was started before but for this:

  SITS_ADMIN_SOCKET=/run/vllm/admin.sock PYTHONPATH={file} \\
    vllm serve MODEL --scheduler-cls sits_vllm.Scheduler

The directory of the socket must be one that vLLM's user may write to (RuntimeDirectory=vllm
in its unit). SITS_ADMIN_GROUP=GROUP admits a group beside root. Each data-parallel rank has a
socket of its own: admin.sock, admin-1.sock, admin-2.sock and so on.""",
        """\
[engines.vllm]
unit = "vllm.service"
admin_socket = "/run/vllm/admin.sock"
slo = {{ ttft_ms = 2000, gap_ms = 200 }}""",
    )
}


@click.command("engine-plugin")
@click.argument("engine", type=click.Choice(tuple(PLUGINS)))
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it. [default: the plug-in's name, here]",
)
def engine_plugin(engine: str, output: Path | None) -> None:
    """Write the plug-in for ENGINE, one file without dependencies, and say how to use it."""
    from agent.engine_plugin import bundle

    plugin = PLUGINS[engine]
    file = output or Path(f"{plugin.package}.zip")
    try:
        file.write_bytes(bundle(plugin.source, plugin.package))
    except OSError as error:
        fail(f"could not write plug-in '{file}': {error.strerror}", WRONG)
    click.echo(f"wrote {file}\n")
    click.echo(plugin.start.format(file=file.absolute()))
    click.echo("\nand name it in the policy of sitsd, /etc/sits/policy.toml:\n")
    click.echo("\n".join(f"  {line}" for line in plugin.policy.format().splitlines()))
