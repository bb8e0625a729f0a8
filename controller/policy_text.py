"""Where each key of a TOML text stands: `tomllib` gives values without their lines."""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

KeyPath = tuple[str | int, ...]
"""A key from the root, such as `("engines", "chat", "slo")`; an int is an array's index."""

_QUOTED: Final = r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'"
_PART: Final = rf"(?:{_QUOTED}|[A-Za-z0-9_-]+)"
_KEY: Final = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
# A multi-line string may end in up to two quotes of its own before the closing three.
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?""""{0,2}|' + r"'''.*?''''{0,2}|" + _QUOTED, re.DOTALL
)
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")
_GAP: Final = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")


class _LostError(Exception):
    """The scanner met something it does not know; what it has found so far still holds."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, counted from 1, of every key, table header and array element of `text`.

    `text` is TOML that `tomllib` accepts. A table that is only implied (`a` in `[a.b]` or
    `a.b = 1`) has the line that first implies it. Where the scanner loses its way, the keys after
    that point are missing: `line_of` then gives the nearest enclosing one.
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    with suppress(_LostError, RecursionError, tomllib.TOMLDecodeError):
        scanner.document()
    return scanner.lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of `path`, else of the nearest key that encloses it, else None."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


class _Scanner:
    """One pass over a document. `at` is the offset of the next character to look at."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._array_sizes: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        self._skip(_GAP)
        while self.at < len(self.text):
            if self._take("[["):
                table = self._header(array=True)
            elif self._take("["):
                table = self._header(array=False)
            else:
                self._pair(table)
            self._skip(_GAP)

    def _header(self, *, array: bool) -> KeyPath:
        start = self.at
        self._skip(_GAP)
        *parents, name = self._key()
        self._skip(_GAP)
        self._need("]]" if array else "]")
        path: KeyPath = ()
        for parent in parents:
            path = self._in_last_element((*path, parent))
            self._imply(path, start)
        path = (*path, name)
        if array:
            self._imply(path, start)
            self._array_sizes[path] = self._array_sizes.get(path, 0) + 1
            path = self._in_last_element(path)
        self.lines[path] = self._line(start)
        return path

    def _pair(self, table: KeyPath) -> None:
        start = self.at
        names = self._key()
        for length in range(1, len(names)):
            self._imply((*table, *names[:length]), start)
        path = (*table, *names)
        self.lines[path] = self._line(start)
        self._skip(_EQUALS)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._take("["):
            self._array(path)
        elif self._take("{"):
            self._inline_table(path)
        elif self.text[self.at : self.at + 1] in ('"', "'"):
            self._match(_STRING)
        else:
            self._match(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        index = 0
        self._skip(_GAP)
        while not self._take("]"):
            self.lines[(*path, index)] = self._line(self.at)
            self._value((*path, index))
            index += 1
            self._skip(_GAP)
            self._take(",")
            self._skip(_GAP)

    def _inline_table(self, path: KeyPath) -> None:
        self._skip(_GAP)
        while not self._take("}"):
            self._pair(path)
            self._skip(_GAP)
            self._take(",")
            self._skip(_GAP)

    def _key(self) -> tuple[str, ...]:
        """The parts of a dotted key; tomllib itself undoes quotes and escapes."""
        node = tomllib.loads(f"{self._match(_KEY)} = 0")
        names = []
        while isinstance(node, dict):
            ((name, node),) = node.items()
            names.append(name)
        return tuple(names)

    def _in_last_element(self, path: KeyPath) -> KeyPath:
        size = self._array_sizes.get(path)
        return path if size is None else (*path, size - 1)

    def _imply(self, path: KeyPath, at: int) -> None:
        self.lines.setdefault(path, self._line(at))

    def _line(self, at: int) -> int:
        return bisect_left(self._line_ends, at) + 1

    def _take(self, token: str) -> bool:
        found = self.text.startswith(token, self.at)
        if found:
            self.at += len(token)
        return found

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise _LostError

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _LostError
        self.at = match.end()
        return match.group()
