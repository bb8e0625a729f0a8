"""The reference engine as a library in a process of its own, without HTTP: a plan in, times out.

Reads JSON from stdin: `plans`, each a list of [arrival_s, prompt_tokens, answer_tokens], served one
after the other. Writes for each its `steps` and, request by request, when it came and its tokens.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from controller.engines.page import PageReader, PageWriter, Step
from controller.reference.engine import Engine, Token
from controller.reference.model import Model, Shape
from controller.simulate.virtual_engine import EngineSpec, StepTimes

SPEC: Final = EngineSpec(
    StepTimes(1, 0, 0), 32_768, max_running=32, max_batched_tokens=512, long_prefill_tokens=512
)
"""Its sizes; step times are its own."""

PATIENCE_S: Final = 120.0

Plan = Sequence[tuple[float, int, int]]


class Alone:
    """The engine, what it delivered when, and the steps it took."""

    def __init__(self, page: Path) -> None:
        self._page = PageWriter(page)
        self._reader = PageReader(page)
        self._changed = threading.Condition()
        self._steps: list[Step] = []
        self._seen = 0
        self._times: dict[int, list[int]] = {}
        self._engine = Engine(
            Model(Shape(), 0),
            SPEC.kv_tokens,
            knobs=SPEC.knobs(),
            max_lease_ms=10_000,
            page=self._page,
            deliver=self._deliver,
        )
        self._engine.start(lambda: None, lambda: None)

    def serve(self, plan: Plan) -> dict[str, Any]:
        """Submit all requests at their times, and wait for the last token."""
        began = time.monotonic()
        asked = sum(answer for _, _, answer in plan)
        arrived = {}
        with self._changed:
            self._steps, self._times = [], {}
        for arrival_s, prompt_tokens, answer_tokens in plan:
            time.sleep(max(0.0, began + arrival_s - time.monotonic()))
            prompt = [1 + at % 200 for at in range(prompt_tokens)]
            with self._changed:
                now_ns = time.monotonic_ns()
                key = self._engine.submit(prompt, answer_tokens, ignore_eos=True)
                assert key is not None
                arrived[key], self._times[key] = now_ns, []
        with self._changed:
            done = self._changed.wait_for(
                lambda: sum(map(len, self._times.values())) == asked, PATIENCE_S
            )
            assert done
            return {
                "steps": [astuple(step) for step in self._steps],
                "requests": [[at_ns, *self._times[key]] for key, at_ns in arrived.items()],
            }

    def stop(self) -> None:
        self._engine.stop()
        self._reader.close()
        self._page.close()

    def _deliver(self, tokens: Sequence[Token]) -> None:
        now_ns = time.monotonic_ns()
        seen = self._reader.read(self._seen)
        assert seen is not None
        with self._changed:
            self._seen = seen[0].steps
            self._steps += seen[1]
            for token in tokens:
                self._times[token.key].append(now_ns)
            self._changed.notify()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        alone = Alone(Path(directory) / "page")
        json.dump([alone.serve(plan) for plan in json.load(sys.stdin)], sys.stdout)
        alone.stop()


if __name__ == "__main__":
    main()
