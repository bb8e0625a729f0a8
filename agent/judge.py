"""Judges streams as they end; the slow ones only when the controller has told what ails the engine.

Its word is of up to a quarter of a second before, and a stream may end with its late chunk.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from agent.state import State
from agent.stream_cause import StreamVerdict, is_slow, stream_cause
from bpf.layout import Event, EventKind
from controller.attribution import Cause
from controller.policy_model import Slo

TOLD_AFTER_NS: Final = 30_000_000
"""A tick of the controller, and the way of its message."""

WITHIN_NS: Final = 700_000_000
"""So long after its end a stream is judged even if the controller says nothing."""

NOT_SLOW: Final = StreamVerdict(Cause.NONE, {})

Deliver = Callable[[str, Event, StreamVerdict], None]
"""Takes an engine's event and, if it ended a slow stream, why."""


class Judge:
    """Hands events on in order, but for the ends of slow streams, which come a moment later."""

    def __init__(self, state: State, slos: Mapping[str, Slo], deliver: Deliver) -> None:
        self._state = state
        self._slos = slos
        self._deliver = deliver
        self._slow: deque[tuple[str, Event]] = deque()

    def set_slos(self, slos: Mapping[str, Slo]) -> None:
        """Judge by these from now on, and what has ended by those before."""
        self.settle(at_once=True)
        self._slos = slos

    def take(self, engine: str, event: Event) -> None:
        """Take an event of an engine."""
        ended = event.kind is EventKind.END
        if ended and is_slow(event.stream, event.at_ns, self._slos[engine]):
            self._slow.append((engine, event))
        else:
            self._deliver(engine, event, NOT_SLOW)

    def settle(self, at_once: bool = False) -> None:
        """Judge the slow streams whose time has come, or all of them."""
        now_ns = time.monotonic_ns()
        while self._slow:
            engine, event = self._slow[0]
            heard = self._state.heard_since(event.at_ns + TOLD_AFTER_NS)
            if not (heard or at_once or now_ns - event.at_ns > WITHIN_NS):
                return
            self._slow.popleft()
            causes = self._state.causes_since(engine, event.stream.request_ns)
            verdict = stream_cause(event.stream, event.at_ns, self._slos[engine], causes)
            self._state.count_slow(engine, str(verdict.cause))
            self._deliver(engine, event, verdict)
