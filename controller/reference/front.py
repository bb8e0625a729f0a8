"""The HTTP front: one asyncio protocol a connection, tokens written as the engine delivers them.

Every event is one chunk in one write, the head and the last chunk are writes of their own: the
shape of vLLM's streams on the wire, which is what the agent follows.
"""

import asyncio
import math
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from controller.reference.engine import Engine, Token
from controller.reference.http1 import (
    LAST_CHUNK,
    Head,
    HttpError,
    chunk,
    response,
    stream_head,
    take_head,
)
from controller.reference.metrics import Metrics
from controller.reference.openai import DONE, Answer, ApiError, Generation, dump, parse

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_RETRY_AFTER_S: Final = 60
"""Clients of OpenAI's API wait for as long as they are told up to here, and guess beyond."""

MAX_PIPELINED_BYTES: Final = 64 * 1024
"""Read ahead while a request runs; then the client has to wait."""

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"


@dataclass(slots=True)
class _Running:
    """A request of a connection that the engine has."""

    key: int
    generation: Generation
    answer: Answer
    keep_alive: bool
    last_ns: int
    tokens: list[int] = field(default_factory=list)


class Front:
    """What all connections share. Used on the event loop's thread only."""

    def __init__(self, engine: Engine, metrics: Metrics, model_name: str, max_context: int) -> None:
        self.engine = engine
        self.metrics = metrics
        self.model_name = model_name
        self.max_context = max_context
        self.created = int(time.time())
        self.connections: set[Connection] = set()
        self._takers: dict[int, Callable[[Token], None]] = {}

    def deliver(self, tokens: Sequence[Token]) -> None:
        """Hand one step's tokens to their connections."""
        for token in tokens:
            take = self._takers.get(token.key)
            if take is not None:
                take(token)

    def submit(self, generation: Generation, take: Callable[[Token], None]) -> int | None:
        """Give a request to the engine; `take` gets its tokens. None when the queue is full."""
        key = self.engine.submit(
            generation.prompt,
            generation.max_tokens,
            generation.temperature,
            ignore_eos=generation.ignore_eos,
        )
        if key is None:
            self.metrics.ended("refused")
        else:
            self._takers[key] = take
        return key

    def forget(self, key: int, reason: str) -> None:
        """A request is over; `abort` takes it away from the engine."""
        del self._takers[key]
        self.metrics.ended(reason)
        if reason == "abort":
            self.engine.abort(key)

    def close(self) -> None:
        """Cut every connection."""
        for connection in list(self.connections):
            connection.cut()


class Connection(asyncio.Protocol):
    """One client: reads a request, answers it, and so on while it is kept alive."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._buffer = bytearray()
        self._head: Head | None = None
        self._running: _Running | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        self._front.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio; a client that leaves frees its slot."""
        self._front.connections.discard(self)
        if self._running is not None:
            self._front.forget(self._running.key, "abort")
            self._running = None

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._buffer += data
        if self._running is None:
            self._serve_buffer()
        elif len(self._buffer) > MAX_PIPELINED_BYTES:
            self._transport.pause_reading()

    def cut(self) -> None:
        """Drop the client."""
        self._transport.abort()

    def _serve_buffer(self) -> None:
        """Answer what is whole in the buffer, until one request has to wait for the engine."""
        try:
            while self._running is None and not self._transport.is_closing():
                if self._head is None:
                    self._head = take_head(self._buffer)
                    if self._head is None:
                        return
                    if self._head.expects_continue:
                        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                if len(self._buffer) < self._head.body_bytes:
                    return
                head, self._head = self._head, None
                body = bytes(self._buffer[: head.body_bytes])
                del self._buffer[: head.body_bytes]
                self._serve(head, body)
        except HttpError as error:
            self._respond(error.status, ApiError(str(error)).body(), keep_alive=False)

    def _serve(self, head: Head, body: bytes) -> None:
        methods = _ROUTES.get(head.path)
        if methods is None:
            error = ApiError(f"nothing is at {head.path}", status=HTTPStatus.NOT_FOUND)
            self._respond(error.status, error.body(), keep_alive=head.keep_alive)
        elif head.method not in methods:
            error = ApiError(
                f"{head.path} takes {' and '.join(methods)}, not {head.method}",
                status=HTTPStatus.METHOD_NOT_ALLOWED,
            )
            allow = (("allow", ", ".join(methods)),)
            self._respond(error.status, error.body(), keep_alive=head.keep_alive, extra=allow)
        else:
            methods[head.method](self, head, body)

    def _respond(
        self,
        status: HTTPStatus,
        body: bytes,
        content_type: str = JSON,
        *,
        keep_alive: bool,
        extra: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._transport.write(
            response(status, body, content_type, keep_alive=keep_alive, extra=extra)
        )
        if not keep_alive:
            self._transport.close()

    def _models(self, head: Head, _: bytes) -> None:
        model = {
            "id": self._front.model_name,
            "object": "model",
            "created": self._front.created,
            "owned_by": "sits",
            "max_model_len": self._front.max_context,
        }
        body = dump({"object": "list", "data": [model]})
        self._respond(HTTPStatus.OK, body, keep_alive=head.keep_alive)

    def _health(self, head: Head, _: bytes) -> None:
        alive = self._front.engine.alive
        status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
        self._respond(status, b"", keep_alive=head.keep_alive)

    def _metrics(self, head: Head, _: bytes) -> None:
        body = self._front.metrics.render()
        self._respond(HTTPStatus.OK, body, PROMETHEUS, keep_alive=head.keep_alive)

    def _completions(self, head: Head, body: bytes) -> None:
        self._generate(head, body, chat=False)

    def _chat(self, head: Head, body: bytes) -> None:
        self._generate(head, body, chat=True)

    def _generate(self, head: Head, body: bytes, *, chat: bool) -> None:
        began_ns = time.monotonic_ns()
        front = self._front
        try:
            generation = parse(
                body, chat=chat, model_name=front.model_name, max_context=front.max_context
            )
        except ApiError as error:
            self._respond(error.status, error.body(), keep_alive=head.keep_alive)
            return
        key = front.submit(generation, self._take)
        if key is None:
            full = ApiError("the queue is full", status=HTTPStatus.SERVICE_UNAVAILABLE)
            retry = (("retry-after", str(retry_after_s(front.engine.drain_s()))),)
            self._respond(full.status, full.body(), keep_alive=head.keep_alive, extra=retry)
            return
        answer = Answer(uuid.uuid4().hex, int(time.time()), front.model_name, generation)
        self._running = _Running(key, generation, answer, head.keep_alive, began_ns)
        if generation.stream:
            self._transport.write(stream_head(EVENT_STREAM, keep_alive=head.keep_alive))
            if chat:
                self._transport.write(chunk(answer.role_event()))

    def _take(self, token: Token) -> None:
        """One token of the running request."""
        running = self._running
        assert running is not None
        now_ns = time.monotonic_ns()
        timing = self._front.metrics.gap if running.tokens else self._front.metrics.ttft
        timing.observe((now_ns - running.last_ns) / 1e9)
        running.last_ns = now_ns
        running.tokens.append(token.token)
        if running.generation.stream:
            self._transport.write(chunk(running.answer.token_event(token.token, token.finish)))
        if token.finish is not None:
            self._finish(running, token.finish)

    def _finish(self, running: _Running, finish: str) -> None:
        self._front.forget(running.key, finish)
        self._running = None
        if running.generation.stream:
            if running.generation.include_usage:
                usage = running.answer.usage_event(len(running.tokens))
                self._transport.write(chunk(usage))
            self._transport.write(chunk(DONE))
            self._transport.write(LAST_CHUNK)
            if not running.keep_alive:
                self._transport.close()
        else:
            body = running.answer.whole(running.tokens, finish)
            self._respond(HTTPStatus.OK, body, keep_alive=running.keep_alive)
        self._transport.resume_reading()
        self._serve_buffer()


def retry_after_s(drain_s: float) -> int:
    """When a refused client should come back; what is queued will take `drain_s`, or NaN."""
    return max(1, math.ceil(min(drain_s, MAX_RETRY_AFTER_S))) if drain_s > 0 else 1


Handler = Callable[[Connection, Head, bytes], None]

_ROUTES: Final[Mapping[str, Mapping[str, Handler]]] = {
    COMPLETIONS: {"POST": Connection._completions},
    CHAT: {"POST": Connection._chat},
    "/v1/models": {"GET": Connection._models},
    "/health": {"GET": Connection._health},
    "/metrics": {"GET": Connection._metrics},
}
