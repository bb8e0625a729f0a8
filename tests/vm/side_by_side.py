"""A few pieces of work at a time, each in a thread that nobody has to wait for."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def side_by_side(pieces: Sequence[Callable[[], T]], at_once: int) -> Iterator[T]:
    """Call every piece, `at_once` of them at a time, and yield what they return as they end.

    What a piece raises is raised here, when it ends. Who leaves early does not wait for the rest:
    the threads are daemons, and end with the process.
    """
    waiting: SimpleQueue[tuple[Callable[[], T], Future[T]]] = SimpleQueue()
    futures: list[Future[T]] = []
    for piece in pieces:
        futures.append(Future())
        waiting.put((piece, futures[-1]))

    def work() -> None:
        while True:
            try:
                piece, future = waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(piece())
            except BaseException as error:
                future.set_exception(error)

    for _ in range(min(at_once, len(pieces))):
        threading.Thread(target=work, daemon=True).start()
    for future in as_completed(futures):
        yield future.result()
