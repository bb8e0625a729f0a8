"""The admin socket: JSON lines over a Unix stream socket, one thread for every client.

What a client sends or leaves out harms only itself: input and output are bounded, nothing blocks,
and each client gets a few lines a turn.
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from controller.engines.contract import MAX_LINE_BYTES, ContractError, decode, encode
from controller.serving.calls import Calls
from controller.serving.served import Served
from controller.serving.unix_socket import admits, listen
from controller.slices import shorten

log = logging.getLogger(__name__)

MAX_CLIENTS: Final = 64
"""One more, and the client heard from longest ago is closed."""

MAX_UNREAD_BYTES: Final = 256 * 1024
"""Answers and events a client has not read; beyond this it is closed."""

LINES_A_TURN: Final = 16

SLICE_NS: Final = 100_000
"""Of this thread's turns on the CPU, the shortest there is; an answer takes one or two."""

NS_PER_MS: Final = 1_000_000


@dataclass(slots=True, eq=False)
class _Client:
    sock: socket.socket
    heard_ns: int
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    watches: bool = False
    watch_id: object = None
    period_ns: int | None = None
    next_stats_ns: int = 0


class AdminServer:
    """Serves the contract at a Unix socket, on its own thread, until `stop`."""

    def __init__(
        self, path: Path, engine: Served, calls: Calls, admin_gid: int | None = None
    ) -> None:
        """Listens at once; `AdminError` if it can't. `start` begins to answer."""
        self._path = path
        self._engine = engine
        self._calls = calls
        self._admin_gid = admin_gid
        self._listener = listen(path, admin_gid)
        self._inode = path.stat().st_ino
        self._clients: set[_Client] = set()
        self._waiting_lines: set[_Client] = set()
        self._told_version = 0
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def wake(self) -> None:
        """Look at the knobs: the engine changed one. From any thread, never blocks."""
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Close every connection and remove the socket."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        for client in list(self._clients):
            self._close(client)
        self._selector.close()
        self._listener.close()
        os.close(self._wake)
        try:
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass

    def _run(self) -> None:
        # whoever asks waits, beside threads that compute for milliseconds at a time
        shorten(SLICE_NS)
        while not self._stopping:
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            for client in list(self._waiting_lines):
                self._answer_lines(client)
            self._tell_watchers()

    def _timeout_s(self) -> float | None:
        """Until a lease runs out or a watcher wants figures."""
        if self._waiting_lines:
            return 0
        ends = [client.next_stats_ns for client in self._clients if client.period_ns is not None]
        deadline_ns = self._engine.next_deadline_ns()
        if deadline_ns is not None:
            ends.append(deadline_ns)
        if not ends:
            return None
        return max(0, min(ends) - time.monotonic_ns()) / 1e9

    def _woken(self) -> None:
        os.eventfd_read(self._wake)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            log.warning("could not accept on admin socket '%s': %s", self._path, error)
            return
        sock.setblocking(False)
        client = _Client(sock, time.monotonic_ns())
        self._clients.add(client)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._ready(client))
        if not admits(sock, self._admin_gid):
            self._end(client, ContractError("denied", "only root and the admin group may"))
        elif len(self._clients) > MAX_CLIENTS:
            self._close(min(self._clients, key=lambda other: other.heard_ns))

    def _ready(self, client: _Client) -> None:
        """Write and read what is possible; no reading while lines wait, so that they stay few."""
        if client in self._clients and client.outbox:
            self._flush(client)
        if client not in self._clients or client in self._waiting_lines:
            return
        try:
            received = client.sock.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close(client)
            return
        client.heard_ns = time.monotonic_ns()
        client.inbox += received
        self._answer_lines(client)

    def _answer_lines(self, client: _Client) -> None:
        self._waiting_lines.discard(client)
        for _ in range(LINES_A_TURN):
            end = client.inbox.find(b"\n", 0, MAX_LINE_BYTES)
            if end < 0:
                if len(client.inbox) >= MAX_LINE_BYTES:
                    self._end(
                        client,
                        ContractError("bad_json", f"a line is at most {MAX_LINE_BYTES} bytes"),
                    )
                return
            line = bytes(client.inbox[:end])
            del client.inbox[: end + 1]
            if line.strip():
                self._send(client, self._answer(client, line))
            if client not in self._clients:
                return
        if b"\n" in client.inbox:
            self._waiting_lines.add(client)

    def _answer(self, client: _Client, line: bytes) -> dict[str, Any]:
        try:
            message = decode(line)
            request_id = message.get("id")
            if request_id is not None and type(request_id) not in {int, str}:
                raise ContractError("bad_request", "id must be a whole number or a string")
        except ContractError as error:
            return {"id": None, "ok": False, "error": error.as_dict()}
        response = {"id": request_id, **self._calls.answer(message)}
        if response["ok"] and message["call"] == "watch":
            client.watches = True
            client.watch_id = request_id
            period_ms = response["period_ms"]
            client.period_ns = None if period_ms is None else period_ms * NS_PER_MS
            client.next_stats_ns = time.monotonic_ns()
        return response

    def _tell_watchers(self) -> None:
        version = self._engine.expire()
        watchers = [client for client in self._clients if client.watches]
        if version != self._told_version:
            self._told_version = version
            self._tell(watchers, self._calls.knobs_event)
        now_ns = time.monotonic_ns()
        due = []
        for client in watchers:
            if client.period_ns is not None and now_ns >= client.next_stats_ns:
                client.next_stats_ns = now_ns + client.period_ns
                due.append(client)
        self._tell(due, self._calls.stats_event)

    def _tell(self, clients: list[_Client], make: Callable[[], dict[str, Any]]) -> None:
        if not clients:
            return
        event = make()
        for client in clients:
            self._send(client, {"id": client.watch_id, **event})

    def _send(self, client: _Client, message: dict[str, Any]) -> None:
        if client not in self._clients:
            return
        client.outbox += encode(message)
        self._flush(client)
        if len(client.outbox) > MAX_UNREAD_BYTES:
            self._close(client)

    def _flush(self, client: _Client) -> None:
        try:
            sent = client.sock.send(client.outbox)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(client)
            return
        del client.outbox[:sent]
        events = selectors.EVENT_READ
        if client.outbox:
            events |= selectors.EVENT_WRITE
        key = self._selector.get_key(client.sock)
        if key.events != events:
            self._selector.modify(client.sock, events, key.data)

    def _end(self, client: _Client, error: ContractError) -> None:
        """Say why, then close."""
        self._send(client, {"id": None, "ok": False, "error": error.as_dict()})
        self._close(client)

    def _close(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._waiting_lines.discard(client)
        self._selector.unregister(client.sock)
        client.sock.close()
