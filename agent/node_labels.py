"""Labels of this node for Kubernetes' node-feature-discovery, in a file that it reads.

Its format is a line NAME=VALUE for each label (node-feature-discovery, "local" feature source).
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

FRAGMENTATION: Final = "sits-gpu-memory-fragmentation-percent"
"""Seed A13: of the engine where it is worst."""


def labels_of(status: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels by the controller's status; what is not known has none."""
    engines = status["engines"].values() if status is not None else ()
    memory = [each.get("memory") or {} for each in engines]
    known = [m["gpu_fragmentation"] for m in memory if m.get("gpu_fragmentation") is not None]
    return {FRAGMENTATION: f"{100 * max(known):.0f}"} if known else {}


class NodeLabels:
    """The file at a path, or none. `problem` says why it could not be written, else empty."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._shown: Mapping[str, str] | None = None
        self.problem = ""

    def show(self, labels: Mapping[str, str]) -> None:
        """These are the labels now; the file is replaced whole, where they changed."""
        if self._path is None or labels == self._shown:
            return
        # a name that begins with a dot is not read
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            fresh.write_text("".join(f"{name}={value}\n" for name, value in labels.items()))
            fresh.replace(self._path)
        except OSError as error:
            self.problem = f"could not write labels to '{self._path}': {error.strerror}"
            return
        self._shown, self.problem = dict(labels), ""

    def move(self, path: Path | None) -> None:
        """The file is another from now on, or none."""
        if path != self._path:
            self.close()
            self._path = path

    def close(self) -> None:
        """Take the file away, if it is ours."""
        if self._path is not None and self._shown is not None:
            with suppress(OSError):
                self._path.unlink()
        self._shown, self.problem = None, ""
