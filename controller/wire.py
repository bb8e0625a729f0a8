"""What the agent and the controller say to each other: JSON, one object a line, over a socket pair.

The agent sends `config`, `learnt` and `unfinished` once, then `policy`, `targets` and `mode` as
they change, `queues` (what it sees in the engines' sockets) a few times a second, and `by_hand`,
`hand_back` and `recorded` for operators. The controller sends `status` a few times a second,
`decision`, `ack`, `event` and `learnt` as they happen, `inputs` of each decision, and once a
second, when there is time, and `change`, `by_hand` and `handed_back` of what operators change. Both
ends are ours and of one version; a line that is not understood is a bug and ends the controller.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Message = dict[str, Any]

_READ_BYTES: Final = 1 << 16
_json: Final = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """An engine as discovery found it: its row in the counters and its cgroup's path."""

    name: str
    row: int
    cgroup: str | None


@dataclass(frozen=True, slots=True)
class NeighbourTarget:
    """A neighbour as discovery found it; `limit` says whether it may be limited.

    How far is its class's business; `weight` is its base weight as a tenant, 0 for none.
    """

    name: str
    row: int
    cgroup: str | None
    limit: bool
    min_cores: float
    service_class: str = ""
    cpu_share: float = 1.0
    freeze_ms: int = 0
    retry_ms: int = 1000
    weight: int = 0
    idle: bool = True


class Channel:
    """One end of the socket pair: never blocks, keeps what could not be sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over `sock`."""
        sock.setblocking(False)
        self._sock = sock
        self._inbox = b""
        self._outbox = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._outbox)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or as much of it as goes out now."""
        self._outbox += _json.encode(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send more of what is left. A peer that is gone is found out by `receive`."""
        try:
            while self._outbox:
                del self._outbox[: self._sock.send(self._outbox)]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._outbox.clear()

    def receive(self) -> list[Message]:
        """The messages there are now; `EOFError` when the other end is gone and all is read."""
        received = 0
        while True:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data and not received:
                raise EOFError("the other process is gone")
            self._inbox += data
            received += len(data)
            if len(data) < _READ_BYTES:
                break
        *lines, self._inbox = self._inbox.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self._sock.close()


def targets_message(
    engines: list[EngineTarget], neighbours: list[NeighbourTarget]
) -> Mapping[str, Any]:
    """The `targets` message."""
    return {
        "type": "targets",
        "engines": [[e.name, e.row, e.cgroup] for e in engines],
        "neighbours": [[getattr(n, name) for name in type(n).__slots__] for n in neighbours],
    }


def parse_targets(message: Message) -> tuple[list[EngineTarget], list[NeighbourTarget]]:
    """What a `targets` message says."""
    return (
        [EngineTarget(*fields) for fields in message["engines"]],
        [NeighbourTarget(*fields) for fields in message["neighbours"]],
    )
