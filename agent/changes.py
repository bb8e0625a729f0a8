"""Changes by hand: what operators ask for, what the journal has of it, what became of it.

The controller makes them (`controller.hands`); here is what it can't do itself: have each stage on
disk before it goes on, tell the next controller what one that died left, and answer who asked.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from agent.agent_view import ApiError, JsonObject
from agent.main_thread import BusyError, MainThread
from agent.recorder import Recorder
from controller.journal import OpenChange

WAIT_S: Final = 4.0
"""Less than a client waits for its answer."""

OVER: Final = "over"

Send = Callable[[Mapping[str, Any]], bool]
"""Tells the controller; False where there is none."""


class Changes:
    """Asked by the API's threads; all else is for the main one."""

    def __init__(
        self,
        recorder: Recorder,
        main: MainThread,
        send: Send,
        wake: Callable[[], None],
        left: Iterable[OpenChange] = (),
    ) -> None:
        """`left` are those that the journal has from an earlier run."""
        self._recorder = recorder
        self._main = main
        self._send = send
        self._wake = wake
        self._open = {each.id: each for each in left}
        self._asked: dict[int, Future[JsonObject]] = {}
        self._written: deque[tuple[OpenChange, bool, str]] = deque()
        self._last_id = 0

    def ask(
        self, engines: Iterable[str], values: Mapping[str, float], lease_s: float, reason: str
    ) -> JsonObject:
        """Have `values` set on all the engines, or on two thirds of them, for `lease_s`.

        What became of it; `ApiError` 409 where it was refused, 503 without a controller.
        """
        message = {
            "type": "by_hand",
            "engines": sorted(set(engines)),
            "values": dict(values),
            "lease_ms": int(lease_s * 1e3),
            "reason": reason,
        }
        answer = self._answered(message)
        if answer["state"] == "refused":
            raise ApiError(409, f"nothing was changed: {answer['why']}")
        return answer

    def give_back(self, engines: Iterable[str], reason: str) -> JsonObject:
        """End the changes on these engines, or without one on all; returns on which there was one.

        Errors as in `ask`.
        """
        return self._answered(
            {"type": "hand_back", "engines": sorted(set(engines)), "reason": reason}
        )

    def said(self, message: Mapping[str, Any]) -> None:
        """Take what the controller says of a change."""
        match message["type"]:
            case "change":
                self._record(message)
            case "by_hand" | "handed_back":
                future = self._asked.pop(message["id"], None)
                if future is not None:
                    answer = {key: message[key] for key in message.keys() - {"type", "id"}}
                    future.set_result(_timed(answer))

    def tick(self) -> None:
        """Tell the controller what the journal has by now."""
        while self._written:
            change, awaited, why = self._written.popleft()
            if not why and change.stage != OVER:
                self._open[change.id] = change
            if awaited:
                self._send(
                    {"type": "recorded", "id": change.id, "stage": change.stage, "error": why}
                )

    def unfinished(self) -> Mapping[str, Any]:
        """The message that tells a new controller what there is to take up."""
        return {
            "type": "unfinished",
            "changes": [
                {"id": each.id, "stage": each.stage, "detail": dict(each.detail)}
                for each in self._open.values()
            ],
        }

    def controller_died(self) -> None:
        """Nobody answers any more what was asked of it."""
        asked, self._asked = self._asked, {}
        for future in asked.values():
            why = "the controller died; what it had decided the next one takes up"
            future.set_exception(ApiError(503, why))

    def close(self, reason: str) -> None:
        """The agent stops: its controller has given everything back."""
        for each in self._open.values():
            detail = {**each.detail, "ended": reason}
            self._recorder.change(each.id, OVER, detail, lambda _: None)
        self._open.clear()
        self.controller_died()

    def _answered(self, message: Mapping[str, Any]) -> JsonObject:
        future: Future[JsonObject] = Future()
        try:
            change_id = self._main.call(lambda: self._begin(message, future))
        except BusyError as error:
            raise ApiError(503, str(error)) from None
        try:
            return future.result(WAIT_S)
        except TimeoutError:
            return {"state": "under way", "id": change_id}

    def _begin(self, message: Mapping[str, Any], future: Future[JsonObject]) -> int:
        # unique over restarts too: the journal tells changes apart by nothing else
        self._last_id = max(self._last_id + 1, time.time_ns() // 1_000_000)
        self._asked[self._last_id] = future
        if not self._send({**message, "id": self._last_id}):
            del self._asked[self._last_id]
            raise ApiError(503, "nothing was changed: the controller does not run")
        return self._last_id

    def _record(self, message: Mapping[str, Any]) -> None:
        change = OpenChange(message["id"], message["stage"], message["detail"])
        if change.stage == OVER:
            self._open.pop(change.id, None)

        def written(why: str) -> None:
            self._written.append((change, message["wait"], why))
            self._wake()

        self._recorder.change(change.id, change.stage, change.detail, written)


def _timed(answer: JsonObject) -> JsonObject:
    """With the time that is left, for who has no monotonic clock of ours."""
    until_ns = answer.pop("until_ns", None)
    if until_ns is not None:
        answer["left_s"] = max(0.0, (until_ns - time.monotonic_ns()) / 1e9)
    return answer
