"""Writes manual pages of sitsd, sitsctl and each of its commands, from their own help.

`python docs/man.py DIRECTORY`; `man -l DIRECTORY/sitsctl-explain.1` shows one.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from agent.sitsctl import main as sitsctl
from agent.sitsd import main as sitsd

EXITS: Final = {
    "0": "All is well.",
    "1": "Something is wrong.",
    "2": "The command was not understood or is not possible.",
    "3": "The agent could not be reached.",
}
"""As docs/sitsctl.md has them."""


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    found = {"sitsd.8": page(sitsd, click.Context(sitsd, info_name="sitsd"), 8)}
    for command, context in walked(sitsctl, click.Context(sitsctl, info_name="sitsctl")):
        found[f"{context.command_path.replace(' ', '-')}.1"] = page(command, context, 1)
    return found


def walked(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """A command and all below it."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walked(below, click.Context(below, parent=context, info_name=name))


def page(command: click.Command, context: click.Context, section: int) -> str:
    """One page in the man macros of groff_man(7)."""
    name = context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    paragraphs = [each for each in re.split(r"\n\s*\n", (command.help or "").strip()) if each]
    first = " ".join(paragraphs[0].split())
    lines = [
        f'.TH "{name.upper()}" "{section}" "" "sits {version("sits")}" "sits"',
        ".SH NAME",
        f"{roff(name)} \\- {roff(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {roff(context.command_path)}",
        roff(usage),
        ".SH DESCRIPTION",
    ]
    for paragraph in paragraphs:
        lines += [".PP", roff(" ".join(paragraph.split()))]
    options = [each.get_help_record(context) for each in command.get_params(context)]
    lines.append(".SH OPTIONS")
    for option, text in (each for each in options if each is not None):
        lines += [".TP", f".B {roff(option)}", roff(text)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            lines += [".TP", f".BR {roff(f'{name}-{each}')} (1)"]
            lines.append(roff(below.get_short_help_str(200)))
    if section == 1:
        lines.append(".SH EXIT STATUS")
        for code, text in EXITS.items():
            lines += [".TP", f".B {code}", roff(text)]
    lines += [".SH SEE ALSO", ".BR sitsctl (1),", ".BR sitsd (8)"]
    return "\n".join(lines) + "\n"


def roff(text: str) -> str:
    """Text as roff takes it literally, on one line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return f"\\&{text}" if text[:1] in {".", "'"} else text


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in pages().items():
        (directory / file).write_text(content, "utf-8")
