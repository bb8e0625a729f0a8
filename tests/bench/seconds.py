"""How much load came in each second of a whole trace."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEADER: Final = "second,requests,context_tokens"


@dataclass(frozen=True, slots=True)
class Seconds:
    """Requests and prompt tokens a second, one entry for each second of the trace."""

    requests: tuple[float, ...]
    tokens: tuple[float, ...]


def read_seconds(path: Path) -> Seconds:
    """The trace at `path`; ValueError where a line is not of its format."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    if not lines or lines[0] != _HEADER:
        raise ValueError(f"could not load trace '{path}': not its header")
    rows = [[int(field) for field in row] for row in csv.reader(lines[1:])]
    requests = [0.0] * (rows[-1][0] + 1)
    tokens = [0.0] * len(requests)
    for second, count, total in rows:
        requests[second], tokens[second] = float(count), float(total)
    return Seconds(tuple(requests), tuple(tokens))
