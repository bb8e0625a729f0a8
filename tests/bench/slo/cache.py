"""What runs gave, kept by a hash of all that went into them: a bench goes on where it stopped."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

_SOURCES: Final = ("*.py", "*.c", "*.h")


class Cache:
    """Results in one directory, a file each."""

    def __init__(self, directory: Path, *, fresh: bool = False) -> None:
        """`fresh` finds nothing that was there before this began."""
        self._directory = directory
        self._fresh = fresh
        self._made: set[str] = set()

    def get(self, inputs: Mapping[str, Any]) -> Any:
        """What was kept for these inputs; None if there is nothing."""
        key = key_of(inputs)
        path = self._directory / f"{key}.json"
        if (self._fresh and key not in self._made) or not path.exists():
            return None
        return json.loads(path.read_text())["result"]

    def put(self, inputs: Mapping[str, Any], result: Any) -> None:
        """Keep a result; there whole or not at all."""
        key = key_of(inputs)
        self._directory.mkdir(parents=True, exist_ok=True)
        part = self._directory / f"{key}.part"
        part.write_text(json.dumps({"inputs": inputs, "result": result}))
        part.rename(self._directory / f"{key}.json")
        self._made.add(key)


def key_of(inputs: Mapping[str, Any]) -> str:
    """The name of these inputs, whatever their order."""
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def hash_of_sources(directories: Iterable[Path]) -> str:
    """One hash of all the code in these directories."""
    found = hashlib.sha256()
    for directory in directories:
        files = (path for pattern in _SOURCES for path in directory.rglob(pattern))
        for path in sorted(files):
            found.update(str(path.relative_to(directory)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:24]
