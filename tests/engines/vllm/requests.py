"""Requests to a vLLM server, by prompts of token ids so that lengths are exact."""

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

HOST: Final = "127.0.0.1"
VOCABULARY: Final = 1990
FIRST_WORD: Final = 3
"""Ids below are special tokens."""

PATIENCE_S: Final = 120.0


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt of so many tokens that shares no beginning with that of another seed."""
    return [FIRST_WORD + (i * 7 + seed * 131) % VOCABULARY for i in range(tokens)]


@dataclass(slots=True)
class Answer:
    """Times are CLOCK_MONOTONIC; `first_ns` that of the first token."""

    status: int = 0
    sent_ns: int = 0
    first_ns: int = 0
    ended_ns: int = 0
    tokens: list[int] = field(default_factory=list)
    finish: str = ""


def ask(port: int, tokens: Sequence[int], answer_tokens: int) -> Answer:
    """Stream one completion, greedy and to its full length."""
    answer = Answer(sent_ns=time.monotonic_ns())
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    fields: dict[str, Any] = {
        "prompt": list(tokens),
        "max_tokens": answer_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
    }
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(fields), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        answer.status = response.status
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            answer.first_ns = answer.first_ns or time.monotonic_ns()
            choice = json.loads(line[6:])["choices"][0]
            answer.tokens += choice.get("token_ids") or []
            answer.finish = choice["finish_reason"] or answer.finish
    finally:
        connection.close()
    answer.ended_ns = time.monotonic_ns()
    return answer


class Crowd:
    """A context: requests under way at once, each on a thread of its own."""

    def __init__(self, port: int, threads: int = 64) -> None:
        self._port = port
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def send(self, tokens: Sequence[int], answer_tokens: int) -> Future[Answer]:
        """Ask for one."""
        return self._pool.submit(ask, self._port, tokens, answer_tokens)

    def send_many(
        self, count: int, prompt_tokens: int, answer_tokens: int, seed: int = 0
    ) -> list[Future[Answer]]:
        """Ask for several of a shape."""
        return [
            self.send(prompt(prompt_tokens, seed + number), answer_tokens)
            for number in range(count)
        ]


def get(port: int, path: str) -> str:
    """The body of a GET."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def metrics(port: int) -> dict[str, float]:
    """vLLM's own figures: every sample, summed over its labels, and by reason where it has one."""
    found: dict[str, float] = {}
    for line in get(port, "/metrics").splitlines():
        if line.startswith("vllm:"):
            name, value = line.rsplit(" ", 1)
            key = name.partition("{")[0]
            if "_bucket" not in key:
                found[key] = found.get(key, 0.0) + float(value)
    return found
