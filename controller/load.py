"""The load of an engine over the last minutes: what arrives, how long prompts and answers are."""

import math
from dataclasses import dataclass
from typing import Final

from controller.engines.page import EngineNow

MEMORY_S: Final = 180.0
"""Time constant of the means: longer than a burst, which is to be waited out and not refused."""

LEAST_S: Final = 1e-3
"""Between two looks; less gives no rate."""

LEAST: Final = 1e-6
"""What weighs less is forgotten."""

KNOWN_S: Final = 20.0
KNOWN_REQUESTS: Final = 20
"""Fewer seconds or requests make no mean."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sums in which older seconds weigh less; a total is the engine's when last looked at."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    finished: float = 0.0
    generated: float = 0.0
    weight_s: float = 0.0
    seconds: float = 0.0
    seen: int = 0
    totals: tuple[int, int, int, int] | None = None

    @property
    def known(self) -> bool:
        """Whether the means say something."""
        return self.seconds >= KNOWN_S and self.seen >= KNOWN_REQUESTS and self.finished >= 1

    @property
    def lengths_known(self) -> bool:
        """Whether enough requests came and ended to know their lengths; rates take longer."""
        return min(self.requests, self.finished) >= KNOWN_REQUESTS

    @property
    def prompt_per_answer(self) -> float:
        """Prompt tokens for each token of an answer; 0 while lengths are not known.

        As long as few have ended, what those that run were given so far counts as theirs: then it
        is less than it will be, and allows more to run.
        """
        if not self.lengths_known or self.mean_answer <= LEAST:
            return 0.0
        return self.mean_prompt / self.mean_answer

    @property
    def prompt_tokens_per_s(self) -> float:
        """What arrives, in prompt tokens."""
        return self.prompt_tokens / self.weight_s if self.weight_s > LEAST else 0.0

    @property
    def mean_prompt(self) -> float:
        """Tokens of a prompt."""
        return self.prompt_tokens / self.requests if self.requests > LEAST else 0.0

    @property
    def mean_answer(self) -> float:
        """Tokens of an answer."""
        return self.generated / self.finished if self.finished > LEAST else 0.0


def after(load: Load, engine: EngineNow, passed_s: float) -> Load:
    """The load after `passed_s` seconds at whose end the engine shows this."""
    totals = (
        engine.requests_total,
        engine.prompt_tokens_total,
        engine.finished_total,
        engine.generated_tokens_total,
    )
    if load.totals is None or passed_s < LEAST_S:
        return Load(totals=totals)
    new = [max(0, now - before) for now, before in zip(totals, load.totals, strict=True)]
    kept = math.exp(-passed_s / MEMORY_S)
    return Load(
        requests=kept * load.requests + new[0],
        prompt_tokens=kept * load.prompt_tokens + new[1],
        finished=kept * load.finished + new[2],
        generated=kept * load.generated + new[3],
        weight_s=kept * load.weight_s + passed_s,
        seconds=load.seconds + passed_s,
        seen=load.seen + new[0],
        totals=totals,
    )
