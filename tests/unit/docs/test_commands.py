"""What the documents tell people to type, and where they point to, is there."""

import re
import shlex
from pathlib import Path

import click
import pytest

from agent.sitsctl import main
from tests.documented import DOCUMENTS, ROOT, Shown, all_shown

_MAKE = re.compile(r"(?:`|# )make ([a-z-]+)")
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def of_sitsctl() -> list[Shown]:
    """Every command line of sitsctl; `sitsctl … --json` is about all of them."""
    found = [each for each in all_shown() if each.line.startswith("sitsctl ")]
    return [each for each in found if not each.line.startswith("sitsctl …")]


def understood(line: str) -> None:
    """Parse a command line as sitsctl does; `click.UsageError` if it does not understand it."""
    line = re.split(r"\s[|>]|>>", line)[0].replace("…", "x")
    words = shlex.split(line)[1:]
    command: click.Command = main
    context = click.Context(main, info_name="sitsctl")
    while isinstance(command, click.Group):
        parser = command.make_parser(context)
        _, words, _ = parser.parse_args(words)
        if not words:
            return
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]}")
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.make_parser(context).parse_args(words)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("shown", of_sitsctl(), ids=str)
def test_every_command_shown_is_understood(shown: Shown) -> None:
    understood(shown.line)


@pytest.mark.parametrize("line", ["sitsctl no-such", "sitsctl status --no-such"])
def test_a_command_that_there_is_not_would_be_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        understood(line)


def test_many_commands_are_shown() -> None:
    assert len(of_sitsctl()) > 100


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_named_is_there(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert set(_MAKE.findall(path.read_text())) <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    lost = []
    for link in _LINK.findall(path.read_text()):
        name, _, wanted = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            lost.append(link)
        elif wanted and target.suffix == ".md":
            headings = re.findall(r"(?m)^#+ (.*)$", target.read_text())
            anchors = [anchor(each) for each in headings]
            numbered = {f"{each}-{n}" for each in anchors for n in range(1, anchors.count(each))}
            if wanted not in {*anchors, *numbered}:
                lost.append(link)
    assert lost == []
