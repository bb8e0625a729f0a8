"""The load: an excerpt of a real trace, and how it is made to fit the engine.

Time runs faster by one factor, lengths are divided by another and capped. Order and the shape of
the bursts stay as they were recorded.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXCERPT: Final = Path(__file__).parent / "trace" / "azure_code_excerpt.csv"
"""Azure LLM inference trace 2023, code service, by Microsoft (CC-BY-4.0); its head says more."""


class TraceError(ValueError):
    """A trace that can't be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: seconds after the first one, and tokens in and out."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class LengthScale:
    """Every length is divided by `divisor`, is at least 1 and at most its cap."""

    divisor: float = 4.0
    max_prompt_tokens: int = 1024
    max_answer_tokens: int = 128

    def apply(self, request: Request) -> Request:
        """`request` with lengths the engine can serve."""
        return Request(
            request.arrival_s,
            _shorter(request.prompt_tokens, self.divisor, self.max_prompt_tokens),
            _shorter(request.answer_tokens, self.divisor, self.max_answer_tokens),
        )


@dataclass(frozen=True, slots=True)
class Load:
    """What a client is to send: requests, their time divided by `speed`."""

    requests: tuple[Request, ...]
    speed: float
    window_s: float

    @property
    def requests_per_s(self) -> float:
        """Mean over the window."""
        return len(self.requests) / self.window_s


def read_trace(path: Path = EXCERPT) -> tuple[Request, ...]:
    """The requests of a trace in the excerpt's format, in order of arrival."""
    requests: list[Request] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line[:1] != "#")
            _, header = next(lines, (0, ""))
            if header.strip() != "arrival_s,context_tokens,generated_tokens":
                raise TraceError(f"could not load trace '{path}': not its header: {header!r:.60}")
            for number, line in lines:
                try:
                    (arrival, prompt, answer), *_ = csv.reader([line])
                    requests.append(Request(float(arrival), int(prompt), int(answer)))
                except ValueError as error:
                    raise TraceError(f"{path}:{number}: not a request: {error}") from None
                if len(requests) > 1 and requests[-1].arrival_s < requests[-2].arrival_s:
                    raise TraceError(f"{path}:{number}: earlier than the request before it")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise TraceError(f"could not load trace '{path}': {why}") from None
    return tuple(requests)


def fit(
    requests: Sequence[Request], lengths: LengthScale, requests_per_s: float, window_s: float
) -> Load:
    """The first requests of a trace, at such a speed that `requests_per_s` come on average.

    All fall within `window_s`; it takes as many as the rate asks for, or the whole trace. The
    trace needs two requests at different times.
    """
    first = requests[0].arrival_s
    wanted = min(max(2, int(requests_per_s * window_s)), len(requests))
    while wanted < len(requests) and requests[wanted - 1].arrival_s == first:
        wanted += 1
    end = requests[min(wanted, len(requests) - 1)].arrival_s
    if end <= first:
        raise TraceError("all requests of the trace come at one time")
    speed = (end - first) / window_s
    return Load(
        tuple(
            Request((each.arrival_s - first) / speed, scaled.prompt_tokens, scaled.answer_tokens)
            for each in requests[:wanted]
            for scaled in (lengths.apply(each),)
        ),
        speed,
        window_s,
    )


def mean_prompt_tokens(requests: Iterable[Request]) -> int:
    """The mean prompt length, at least 1."""
    lengths = [each.prompt_tokens for each in requests]
    return max(1, round(sum(lengths) / len(lengths)))


def _shorter(tokens: int, divisor: float, most: int) -> int:
    return min(max(1, round(tokens / divisor)), most)
