"""Clients that read slowly: tiny receive windows, and a few bytes at a time.

What they ask for is work by itself, however they read. So there are clients to compare with that
ask for the same, once, and read at once.
"""

import json
import socket
import threading
from types import TracebackType
from typing import Any, Final, Self

from demo.client import PromptText

HOST: Final = "127.0.0.1"
RECEIVE_BYTES: Final = 4096
"""Of the socket's buffer: the window it offers is cut from this."""

READ_BYTES: Final = 128
READ_EVERY_S: Final = 0.2
PROMPT_TOKENS: Final = 64
ANSWER_TOKENS: Final = 1500
"""So many that an answer lasts for a run: what it fills up stays full."""

PATIENCE_S: Final = 60.0


class SlowReaders:
    """A context: so many threads ask and read slowly until `stop`, then read the rest at once.

    With `at_once` they read at once from the start, and ask no second time.
    """

    def __init__(self, port: int, count: int, prompt: PromptText, *, at_once: bool = False) -> None:
        self._port = port
        self._prompt = prompt
        self._at_once = at_once
        self._stop = threading.Event()
        self._failed: list[str] = []
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """From now on they only read what is still to come."""
        self._stop.set()

    def account(self) -> dict[str, Any]:
        """How many there are, and what went wrong with them."""
        return {"slow_readers": len(self._threads), "slow_failed": list(self._failed)}

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            try:
                self._ask()
            except OSError as error:
                self._failed.append(str(error))
                return
            if self._at_once:
                return

    def _ask(self) -> None:
        body = json.dumps(
            {
                "prompt": self._prompt.of(PROMPT_TOKENS),
                "max_tokens": ANSWER_TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
        )
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\n"
        with socket.socket() as sock:
            if not self._at_once:
                # before it connects: the first window it offers counts
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.settimeout(PATIENCE_S)
            sock.connect((HOST, self._port))
            sock.sendall(f"{head}connection: close\r\n\r\n{body}".encode())
            if not sock.recv(READ_BYTES).startswith(b"HTTP/1.1 200"):
                raise OSError("a slow reader was refused")
            while not self._at_once and not self._stop.wait(READ_EVERY_S):
                if not sock.recv(READ_BYTES):
                    return
            while sock.recv(65536):
                pass
