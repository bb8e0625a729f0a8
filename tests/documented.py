"""The commands that the documents tell people to type, in blocks and within sentences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCUMENTS: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCED: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PROMPT: Final = re.compile(r"^ *([#$]) (.+)$")
_SPAN: Final = re.compile(r"`([^`\n]+)`")
_COMMENT: Final = re.compile(r"\s+#\s.*$")
_ASSIGNED: Final = re.compile(r"(?:[A-Z_]+=\S+ +)*")
_PROGRAM: Final = re.compile(
    "apt|apt-get|bpftool|cat|chmod|curl|dmesg|docker|dpkg|echo|eval|git|groupadd|helm|install"
    "|journalctl|kubectl|make|mount|pip|promtool|python|python3|sits-adapter|sits-reference-engine"
    "|sitsctl|sitsd|socat|ssh|sudo|sysctl|systemctl|tar|tritonserver|umount|usermod|vllm|vmstat"
    "|watch"
)
"""What makes a command of a phrase in a sentence."""


@dataclass(frozen=True, slots=True, order=True)
class Shown:
    """A command line, without its prompt and its comment, and the document that has it."""

    document: str
    line: str


def shown(path: Path) -> Iterator[Shown]:
    """Every command of a document, in its order: those of blocks, then those in sentences."""
    text = path.read_text()
    for language, block in _FENCED.findall(text):
        if language in {"console", "text", "sh", "bash", "shell"}:
            yield from (Shown(path.name, line) for line in typed(block))
    for phrase in _SPAN.findall(_FENCED.sub("", text)):
        if is_command(phrase):
            yield Shown(path.name, phrase)


def typed(block: str) -> Iterator[str]:
    """What is typed in a block: what stands after `$`, and after `#` where it begins with that.

    Elsewhere a line with `#` is a comment in some output.
    """
    lines = block.replace("\\\n", " ").splitlines()
    as_root = bool(lines) and lines[0].lstrip().startswith("# ")
    for line in lines:
        prompt = _PROMPT.match(line)
        if prompt and (prompt[1] == "$" or as_root):
            yield re.sub(r" {2,}", " ", _COMMENT.sub("", prompt[2])).strip()


def is_command(phrase: str) -> bool:
    """Whether somebody may type this: a program we know, with something for it to do."""
    words = _ASSIGNED.sub("", phrase, count=1).split()
    return len(words) > 1 and _PROGRAM.fullmatch(words[0]) is not None


def all_shown() -> list[Shown]:
    """Every command of every document, each once a document."""
    return list(dict.fromkeys(each for path in DOCUMENTS for each in shown(path)))
