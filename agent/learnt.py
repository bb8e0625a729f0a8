"""What the controller learnt of engines, kept in a file over a restart.

It is a beginning, not a truth: a file that is missing, broken or of another version is as none. So
it is put in place whole, but nobody waits for the disk.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from controller.warm import MOST_KEPT, parse_learnt

VERSION: Final = 1
MAX_BYTES: Final = 1 << 20

_LOG: Final = logging.getLogger("sits.learnt")


class LearntFile:
    """The file, and what is in it by fingerprint, oldest first."""

    def __init__(self, path: Path) -> None:
        """Read what there is."""
        self._path = path
        self._known = _read(path)
        self._failed = False

    def message(self) -> Mapping[str, Any]:
        """What a controller is told when it starts."""
        return {"type": "learnt", "engines": dict(self._known)}

    def take(self, key: str, learnt: Mapping[str, Any]) -> None:
        """Keep this. That it can't be written is logged once: nothing depends on it."""
        self._known.pop(key, None)
        self._known[key] = dict(learnt)
        while len(self._known) > MOST_KEPT:
            del self._known[next(iter(self._known))]
        try:
            self._write()
            self._failed = False
        except OSError as error:
            if not self._failed:
                _LOG.warning("could not write '%s': %s", self._path, error.strerror or error)
            self._failed = True

    def _write(self) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "engines": self._known}, file)
        fresh.replace(self._path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES} bytes")
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("version") != VERSION:
            raise ValueError(f"not of version {VERSION}")
        engines = raw["engines"]
        return {
            str(key): learnt
            for key, learnt in list(engines.items())[-MOST_KEPT:]
            if parse_learnt(learnt) is not None
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        _LOG.warning("could not read '%s', engines are learnt anew: %s", path, error)
        return {}
