"""The clients of the cause matrix: a light load, readers that do not read, and long prompts."""

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

HOST: Final = "127.0.0.1"
CLIENTS: Final = 3
PROMPT_TOKENS: Final = 24
PAUSE_S: Final = 0.05
PATIENCE_S: Final = 30.0
READ_BYTES: Final = 64 * 1024
LONG_PROMPTS: Final = (1_500, 3_500)
"""Tokens; a token of the reference engine is a byte."""


def request(prompt_tokens: int, answer_tokens: int) -> bytes:
    """A streamed completion on a connection that ends with it."""
    body = json.dumps(
        {
            "prompt": "x" * prompt_tokens,
            "max_tokens": answer_tokens,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body


class Clients:
    """Threads that stream from one engine until they are told to stop."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.answered = 0
        self.failed: list[str] = []
        self._threads = [
            threading.Thread(target=self._stream_on, args=(random.Random(seed + number),))
            for number in range(CLIENTS)
        ]

    def start(self) -> None:
        """Begin the light load."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End it; every answer comes to its end first."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def not_reading(self, draw: random.Random) -> Iterator[None]:
        """One or two more clients with small windows, who stop reading or read very slowly."""
        done = threading.Event()
        trickle = draw.random() < 0.5
        threads = [
            threading.Thread(
                target=self._hold_up, args=(draw.choice((4096, 8192, 16384)), trickle, done)
            )
            for _ in range(draw.randint(1, 2))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in threads:
                thread.join()

    @contextmanager
    def long_prompts(self, draw: random.Random) -> Iterator[None]:
        """One more client that sends long prompts and wants one token for each."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(draw.uniform(0.05, 0.3)):
                self._stream(request(draw.randint(*LONG_PROMPTS), 1))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _stream_on(self, draw: random.Random) -> None:
        while not self._stop.wait(draw.uniform(0, 2 * PAUSE_S)):
            self._stream(request(PROMPT_TOKENS, draw.randint(48, 192)))

    def _stream(self, message: bytes) -> None:
        try:
            with socket.create_connection((HOST, self._port), PATIENCE_S) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(message)
                while sock.recv(READ_BYTES):
                    pass
            self.answered += 1
        except OSError as error:
            self.failed.append(str(error))

    def _hold_up(self, buffer_bytes: int, trickle: bool, done: threading.Event) -> None:
        with socket.socket() as sock, suppress(OSError):
            # before it connects: the window it offers is cut from this
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            sock.settimeout(PATIENCE_S)
            sock.connect((HOST, self._port))
            sock.sendall(request(PROMPT_TOKENS, 2_000))
            sock.recv(256)
            while not done.wait(0.3):
                if trickle:
                    sock.recv(128)
            until = time.monotonic() + 0.2
            while time.monotonic() < until and sock.recv(READ_BYTES):
                pass
