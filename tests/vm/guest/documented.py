"""The commands that docs/operating.md gives, as an operator would copy them."""

import re
from pathlib import Path
from typing import Final

OPERATING: Final = Path(__file__).parents[3] / "docs/operating.md"

_BLOCK: Final = re.compile(r"```console\n(.*?)```", re.DOTALL)
_SPAN: Final = re.compile(r"`([^`\n]+)`")


def lines(heading: str) -> list[str]:
    """What is to be typed in the blocks of a section, without remarks."""
    text = OPERATING.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    typed = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
    return [re.sub(r"\s{2,}#.*$", "", line.removeprefix("# ").removeprefix("$ ")) for line in typed]


def sentence(words: str) -> list[str]:
    """The commands in the one sentence that ends with these words."""
    (line,) = [each for each in OPERATING.read_text().splitlines() if words in each]
    return _SPAN.findall(line.partition(words)[0].rpartition(". ")[2] + words)


def row(first: str) -> list[str]:
    """The commands in the row of a table that begins so."""
    (line,) = [
        each for each in OPERATING.read_text().splitlines() if each.startswith(f"| {first} ")
    ]
    return _SPAN.findall(line)
