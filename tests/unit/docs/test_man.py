"""The manual pages: of every command, and roff that groff has nothing to say about."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import click
import pytest

from agent.sitsctl import main

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def man() -> ModuleType:
    spec = importlib.util.spec_from_file_location("man", ROOT / "docs" / "man.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_its_page(man: ModuleType) -> None:
    names = set(man.pages())
    assert {f"sitsctl-{name}.1" for name in main.list_commands(click.Context(main))} < names
    assert {"sitsd.8", "sitsctl.1", "sitsctl-policy-apply.1"} < names


def test_a_page_has_the_commands_options_and_exits(man: ModuleType) -> None:
    text = man.pages()["sitsctl-explain.1"]
    for part in (".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", "\\-\\-seconds", ".SH EXIT STATUS"):
        assert part in text


def test_exits_are_those_of_the_document(man: ModuleType) -> None:
    text = (ROOT / "docs" / "sitsctl.md").read_text()
    for code, said in man.EXITS.items():
        assert f"| {code} | {' '.join(said.rstrip('.').split()[:3])}" in text


@pytest.mark.parametrize(
    ("text", "written"), [(".x", "\\&.x"), ("a-b", "a\\-b"), ("a\\b", "a\\eb"), ("'q'", "\\&'q'")]
)
def test_text_that_means_something_to_roff_is_written_literally(
    man: ModuleType, text: str, written: str
) -> None:
    assert man.roff(text) == written


@pytest.mark.slow
def test_groff_has_nothing_to_say(man: ModuleType) -> None:
    assert shutil.which("groff"), "groff is in Debian's groff-base"
    for name, text in man.pages().items():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-K", "utf8", "-T", "utf8"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", name
        assert done.stdout
