"""How fast an engine computes prompts, measured by itself."""

import math


class PrefillRate:
    """Prompt tokens a second, averaged over about `window_ns` of time in which prompts waited.

    Only such time tells what the engine can do. A step that computed no prompt although some waited
    counts too: what waits for a slot or for memory is served no faster. One exponential for
    numerator and denominator, so that long steps weigh more than short ones.
    """

    def __init__(self, window_ns: float = 2e9) -> None:
        self._window_ns = window_ns
        self._tokens = 0.0
        self._ns = 0.0

    @property
    def tokens_per_s(self) -> float:
        """The rate; NaN before prompts ever waited."""
        return self._tokens / self._ns * 1e9 if self._ns > 0 else math.nan

    def take(self, tokens: int, took_ns: int) -> None:
        """While prompts waited, `tokens` of them were computed in `took_ns`."""
        took_ns = max(took_ns, 0)
        kept = math.exp(-took_ns / self._window_ns)
        self._tokens = self._tokens * kept + tokens
        self._ns = self._ns * kept + took_ns
