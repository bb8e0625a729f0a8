"""The client: a light process of its own that sends requests on time and stamps every chunk.

Open loop: arrivals never wait for the engine. It runs at real-time priority on a core of its own
and writes down how late it was itself, because a starved client reports its own delay as the
engine's. For the same reason a chunk's stamp is when the kernel had its last byte for us, not when
we came to read it. Stamps are CLOCK_MONOTONIC, the clock the kernel programs use.
"""

import gc
import heapq
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click

from demo.response import DONE_EVENT, ResponseError, ResponseReader
from demo.stats import Spread, spread
from demo.trace import Request

PRIORITY: Final = 10
LEAD_NS: Final = 100_000_000
"""From when the client is ready to the plan's beginning."""
READ_BYTES: Final = 256 * 1024
SO_TIMESTAMPNS: Final = 35
"""Asks for the kernel's receive time with each read (linux/asm-generic/socket.h)."""
MAX_LATE_NS: Final = 60_000_000_000
"""More than this is a step of the wall clock."""

_TIMESPEC: Final = struct.Struct("@qq")
_NS_PER_MS: Final = 1e6


@dataclass(slots=True)
class Record:
    """What became of one request. `port` is our end; `error` is empty when all went well."""

    index: int
    port: int = 0
    planned_ns: int = 0
    sent_ns: int = 0
    ended_ns: int = 0
    ttft_ms: float | None = None
    gaps_ms: list[float] = field(default_factory=list)
    chunks: int = 0
    body_bytes: int = 0
    status: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late the client itself was.

    `arrival_ms`: requests sent after their time. `read_us`: data read after the kernel had it.
    `realtime` says whether real-time priority was granted.
    """

    arrival_ms: Spread
    read_us: Spread
    realtime: bool


@dataclass(frozen=True, slots=True)
class PromptText:
    """How a prompt of so many tokens is written for an engine.

    A token is a `unit`; `free` tokens the engine adds itself.
    """

    unit: str = "x"
    free: int = 1

    def of(self, tokens: int) -> str:
        """A prompt that is so many tokens long."""
        return self.unit * (tokens - self.free)


REFERENCE_PROMPT: Final = PromptText()
"""The reference engine's token is a byte, and one begins every text."""


class _Stream:
    """One request under way on a connection."""

    def __init__(self, connection: socket.socket, record: Record, message: bytes) -> None:
        self.connection = connection
        self.record = record
        self.unsent = memoryview(message)
        self.reader = ResponseReader()
        self.last_ns = 0

    def take(self, data: bytes, received_ns: int) -> None:
        """Stamp the data chunks that `data` completes."""
        record = self.record
        for payload in self.reader.feed(data):
            if payload.startswith(DONE_EVENT):
                continue
            record.chunks += 1
            if self.last_ns:
                record.gaps_ms.append((received_ns - self.last_ns) / _NS_PER_MS)
            else:
                record.ttft_ms = (received_ns - record.sent_ns) / _NS_PER_MS
            self.last_ns = received_ns
        record.body_bytes = self.reader.body_bytes
        record.status = self.reader.status


class Client:
    """Sends a plan to one server and collects a record for each request of it."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        keep_alive: bool = False,
        give_up_s: float = 120.0,
        prompt: PromptText = REFERENCE_PROMPT,
    ) -> None:
        """`keep_alive`: use connections again. A request is given up `give_up_s` after sending."""
        self._address = address
        self._prompt = prompt
        self._keep_alive = keep_alive
        self._give_up_ns = int(give_up_s * 1e9)
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, _Stream] = {}
        self._idle: list[socket.socket] = []
        self._deadlines: list[tuple[int, int, _Stream]] = []
        self._read_late_us: list[float] = []

    def run(self, plan: Sequence[Request], start_ns: int) -> tuple[list[Record], Lateness]:
        """Send `plan` from `start_ns` on; returns when every request has ended."""
        records = [
            Record(index, planned_ns=start_ns + int(each.arrival_s * 1e9))
            for index, each in enumerate(plan)
        ]
        messages = [self._message(each) for each in plan]
        upcoming = sorted(range(len(plan)), key=lambda index: records[index].planned_ns)
        upcoming.reverse()
        try:
            while True:
                now_ns = time.monotonic_ns()
                while upcoming and records[upcoming[-1]].planned_ns <= now_ns:
                    index = upcoming.pop()
                    self._send(records[index], messages[index])
                self._give_up(now_ns)
                if not upcoming and not self._streams:
                    break
                next_ns = records[upcoming[-1]].planned_ns if upcoming else None
                for key, _ in self._selector.select(self._timeout_s(next_ns)):
                    self._advance(key.data)
        finally:
            self._close()
        late_ms = [(each.sent_ns - each.planned_ns) / _NS_PER_MS for each in records]
        return records, Lateness(spread(late_ms), spread(self._read_late_us), is_realtime())

    def _message(self, request: Request) -> bytes:
        body = json.dumps(
            {
                "prompt": self._prompt.of(request.prompt_tokens),
                "max_tokens": request.answer_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\n"
            f"host: {self._address[0]}:{self._address[1]}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"connection: {'keep-alive' if self._keep_alive else 'close'}\r\n\r\n"
        )
        return head.encode() + body

    def _send(self, record: Record, message: bytes) -> None:
        try:
            connection = self._idle.pop() if self._idle else self._connect()
        except OSError as error:
            record.sent_ns = record.ended_ns = time.monotonic_ns()
            record.error = f"could not connect: {error.strerror}"
            return
        record.port = connection.getsockname()[1]
        stream = _Stream(connection, record, message)
        self._streams[record.index] = stream
        record.sent_ns = time.monotonic_ns()
        heapq.heappush(self._deadlines, (record.sent_ns + self._give_up_ns, record.index, stream))
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(connection, both, stream)
        self._write(stream)

    def _connect(self) -> socket.socket:
        """On loopback this does not wait: the kernel accepts, however busy the engine is."""
        connection = socket.create_connection(self._address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        connection.setblocking(False)
        return connection

    def _advance(self, stream: _Stream) -> None:
        if stream.unsent and not self._write(stream):
            return
        try:
            data, ancillary, *_ = stream.connection.recvmsg(READ_BYTES, 64)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(stream, f"the connection broke: {error.strerror}")
            return
        late_ns = _read_late_ns(ancillary)
        received_ns = time.monotonic_ns() - late_ns
        if data:
            self._read_late_us.append(late_ns / 1e3)
        try:
            if data:
                stream.take(data, received_ns)
            else:
                stream.reader.close()
        except ResponseError as error:
            self._end(stream, str(error))
            return
        if stream.reader.complete:
            self._end(stream, _refusal(stream.reader))

    def _write(self, stream: _Stream) -> bool:
        """Send what the socket takes; False if the connection is gone."""
        try:
            sent = stream.connection.send(stream.unsent)
        except BlockingIOError:
            return True
        except OSError as error:
            self._end(stream, f"could not send: {error.strerror}")
            return False
        stream.unsent = stream.unsent[sent:]
        if not stream.unsent:
            self._selector.modify(stream.connection, selectors.EVENT_READ, stream)
        return True

    def _end(self, stream: _Stream, error: str) -> None:
        stream.record.ended_ns = time.monotonic_ns()
        stream.record.error = error
        self._selector.unregister(stream.connection)
        del self._streams[stream.record.index]
        if self._keep_alive and not error and stream.reader.keep_alive:
            self._idle.append(stream.connection)
        else:
            stream.connection.close()

    def _give_up(self, now_ns: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, index, stream = heapq.heappop(self._deadlines)
            if index in self._streams:
                self._end(stream, f"not answered within {self._give_up_ns / 1e9:g} s")

    def _timeout_s(self, next_ns: int | None) -> float | None:
        waits = [ns for ns in (next_ns, self._next_deadline_ns()) if ns is not None]
        return max(0.0, (min(waits) - time.monotonic_ns()) / 1e9) if waits else None

    def _next_deadline_ns(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self._streams:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _close(self) -> None:
        for stream in list(self._streams.values()):
            self._end(stream, "the client was stopped")
        for connection in self._idle:
            connection.close()
        self._selector.close()


def take_core(cpu: int | None) -> bool:
    """Pin this process to `cpu` and ask for real-time priority; whether that was granted."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True


def is_realtime() -> bool:
    """Whether this process runs at real-time priority."""
    return os.sched_getscheduler(0) == os.SCHED_RR


def began_file(out: Path) -> Path:
    """Where the command writes when the plan begins, as soon as it knows that."""
    return out.with_suffix(".began")


def plan_lines(plan: Iterable[Request]) -> Iterator[str]:
    """A plan as the JSON lines that the command reads."""
    for each in plan:
        yield json.dumps(asdict(each)) + "\n"


def read_results(path: Path) -> tuple[list[Record], Lateness]:
    """What the command wrote."""
    *lines, last = path.read_text().splitlines()
    records = [Record(**json.loads(line)) for line in lines]
    late = json.loads(last)
    return records, Lateness(
        Spread(**late["arrival_ms"]), Spread(**late["read_us"]), late["realtime"]
    )


def write_results(path: Path, records: Iterable[Record], late: Lateness) -> None:
    """One line a request, then one with the client's own lateness; there whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("w") as file:
        for each in records:
            file.write(json.dumps(asdict(each)) + "\n")
        file.write(json.dumps(asdict(late)) + "\n")
    part.rename(path)


@click.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=click.IntRange(1, 65535), required=True)
@click.option("--plan", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--cpu", type=click.IntRange(0), help="Core to run on.")
@click.option("--keep-alive", is_flag=True, help="Use connections again.")
@click.option("--give-up-s", type=click.FloatRange(0.1), default=120.0, show_default=True)
@click.option("--prompt-unit", default=REFERENCE_PROMPT.unit, help="What is one token.")
@click.option("--prompt-free", default=REFERENCE_PROMPT.free, help="Tokens the engine adds.")
def main(
    host: str,
    port: int,
    plan: Path,
    out: Path,
    cpu: int | None,
    *,
    keep_alive: bool,
    give_up_s: float,
    prompt_unit: str,
    prompt_free: int,
) -> None:
    """Send the requests of --plan, each at its time, and write what became of them to --out."""
    requests = [Request(**json.loads(line)) for line in plan.read_text().splitlines()]
    if not take_core(cpu):
        click.echo("no real-time priority for the client: its stamps may be late", err=True)
    prompt = PromptText(prompt_unit, prompt_free)
    client = Client((host, port), keep_alive=keep_alive, give_up_s=give_up_s, prompt=prompt)
    gc.disable()  # a collection would make stamps late
    start_ns = time.monotonic_ns() + LEAD_NS
    began_file(out).write_text(str(start_ns))
    records, late = client.run(requests, start_ns)
    write_results(out, records, late)


def _refusal(reader: ResponseReader) -> str:
    if reader.status == 200:
        return ""
    return f"HTTP {reader.status}: {reader.body[:200].decode(errors='replace')}"


def _read_late_ns(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    """How long ago the kernel received what was just read; 0 if it does not say."""
    now_ns = time.time_ns()  # the kernel stamps in wall time; only the difference is used
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(data[: _TIMESPEC.size])
            late_ns: int = now_ns - seconds * 1_000_000_000 - nanoseconds
            return late_ns if 0 < late_ns < MAX_LATE_NS else 0
    return 0


if __name__ == "__main__":
    main()
