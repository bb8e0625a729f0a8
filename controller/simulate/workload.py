"""What arrives: a recorded trace, scaled to the engine, or a made-up rate."""

import csv
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Final


class TraceError(ValueError):
    """A trace that can't be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds after the first one, tokens in, tokens out."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How a trace is made to fit an engine: time and lengths by one factor each, lengths capped.

    Arrivals come `speed` times as fast. Lengths are divided by `divisor` and are at least 1.
    """

    speed: float = 1.0
    divisor: float = 1.0
    max_prompt_tokens: int = 1 << 30
    max_answer_tokens: int = 1 << 30

    def apply(self, arrivals: Sequence[Arrival]) -> tuple[Arrival, ...]:
        """`arrivals`, scaled; the first comes at 0."""
        start_s = arrivals[0].arrival_s if arrivals else 0.0
        return tuple(
            Arrival(
                (each.arrival_s - start_s) / self.speed,
                _shorter(each.prompt_tokens, self.divisor, self.max_prompt_tokens),
                _shorter(each.answer_tokens, self.divisor, self.max_answer_tokens),
            )
            for each in arrivals
        )


def read_trace(path: Path, limit: int | None = None) -> tuple[Arrival, ...]:
    """The first `limit` requests of a trace, in order of arrival; `TraceError` if it can't be read.

    Formats, told apart by the first line: CSV with `arrival_s,prompt_tokens,answer_tokens` (or
    `arrival_s,context_tokens,generated_tokens`), the Azure LLM inference traces'
    `TIMESTAMP,ContextTokens,GeneratedTokens`, and JSON lines with `timestamp` (ms), `input_length`
    and `output_length`, as Mooncake's. Lines that start with # are passed over.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = (line for line in file if line[:1] != "#")
            arrivals = tuple(islice(_rows(lines), limit))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise TraceError(f"could not load trace '{path}': {why}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"could not load trace '{path}': {error}") from None
    if not arrivals:
        raise TraceError(f"could not load trace '{path}': it has no requests")
    start_s = arrivals[0].arrival_s
    ordered = sorted(arrivals, key=lambda each: each.arrival_s)
    return tuple(replace(each, arrival_s=each.arrival_s - start_s) for each in ordered)


def poisson(
    rate: Callable[[float], float],
    seconds: float,
    prompt_tokens: int,
    answer_tokens: int,
    seed: int = 0,
) -> tuple[Arrival, ...]:
    """Poisson arrivals at `rate(t)` a second for `seconds`; lengths vary by half either way.

    Made by thinning (Lewis and Shedler 1979) from the highest rate at whole seconds.
    """
    chance = random.Random(seed)
    top = max(rate(float(second)) for second in range(int(seconds) + 1))
    gaps = iter(lambda: chance.expovariate(top), None)
    times = (at for at in _until(accumulate(gaps), seconds) if chance.random() < rate(at) / top)
    return tuple(
        Arrival(at, _around(prompt_tokens, chance), _around(answer_tokens, chance)) for at in times
    )


def tokens_per_s(arrivals: Sequence[Arrival]) -> float:
    """Prompt and answer tokens a second that the arrivals ask for."""
    span_s = arrivals[-1].arrival_s - arrivals[0].arrival_s
    asked = sum(each.prompt_tokens + each.answer_tokens for each in arrivals)
    return asked / span_s if span_s > 0 else 0.0


def _rows(lines: Iterator[str]) -> Iterator[Arrival]:
    head = next(lines, "").strip()
    if head.startswith("{"):
        yield _mooncake(json.loads(head))
        yield from (_mooncake(json.loads(line)) for line in lines)
        return
    read = _HEADS.get(head)
    if read is None:
        raise ValueError(f"unknown header {head!r:.60}")
    for row in csv.reader(lines):
        if row:
            yield read(row)


def _plain(row: Sequence[str]) -> Arrival:
    return Arrival(float(row[0]), int(row[1]), max(1, int(row[2])))


def _azure(row: Sequence[str]) -> Arrival:
    # seven digits of a second are one more than fromisoformat takes
    at_s = datetime.fromisoformat(row[0][:26]).timestamp()
    return Arrival(at_s, int(row[1]), max(1, int(row[2])))


def _mooncake(item: Mapping[str, int]) -> Arrival:
    return Arrival(
        item["timestamp"] / 1e3, int(item["input_length"]), max(1, int(item["output_length"]))
    )


def _until(times: Iterator[float], end_s: float) -> Iterator[float]:
    for at in times:
        if at >= end_s:
            return
        yield at


def _around(tokens: int, chance: random.Random) -> int:
    return max(1, round(tokens * chance.uniform(0.5, 1.5)))


def _shorter(tokens: int, divisor: float, most: int) -> int:
    return min(max(1, round(tokens / divisor)), most)


_HEADS: Final[Mapping[str, Callable[[Sequence[str]], Arrival]]] = {
    "arrival_s,prompt_tokens,answer_tokens": _plain,
    "arrival_s,context_tokens,generated_tokens": _plain,
    "TIMESTAMP,ContextTokens,GeneratedTokens": _azure,
}
