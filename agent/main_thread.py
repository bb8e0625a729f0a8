"""What other threads ask of the daemon's main thread: it is done there, one after the other."""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

WAIT_S: Final = 4.0
"""Less than a client waits for its answer."""

_Result = TypeVar("_Result")


class BusyError(RuntimeError):
    """The main thread did not come to it; nothing was done."""


class MainThread:
    """The main thread's queue. `call` is for any other thread, the rest for the main one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` makes the main thread come to `run`."""
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def call(self, job: Callable[[], _Result], wait_s: float = WAIT_S) -> _Result:
        """Have `job` done; what it returns or raises. `BusyError` if it is not begun in time."""
        future: Future[_Result] = Future()
        self._jobs.put((job, future))
        self._wake()
        try:
            return future.result(wait_s)
        except TimeoutError:
            if future.cancel():
                raise BusyError("the agent is busy; nothing was done") from None
            # it is being done right now
            return future.result()

    def run(self) -> None:
        """Do all that was asked."""
        while not self._jobs.empty():
            job, future = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

    def close(self) -> None:
        """Refuse what was asked and not done."""
        while not self._jobs.empty():
            _, future = self._jobs.get()
            if future.set_running_or_notify_cancel():
                future.set_exception(BusyError("the agent stops; nothing was done"))
