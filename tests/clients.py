"""Clients of a test's load, each in a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def clients(count: int, run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Meanwhile so many of them `run`, each until its event is set; then all have ended."""
    stop = threading.Event()
    threads = [threading.Thread(target=run, args=(stop,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
