"""A request, what the server is to send, what the client does, and what is true of the stream."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from tests.bench.truth import Truth
from tests.kernel.bpf.wire import Step, sent_by

ADDRESSES: Final = ("127.0.0.1", "::1", "::", "127.0.0.1+5")
"""What the server listens on; clients of `::` come in over IPv4.

The last takes a connection up once its first data came, which so comes with the handshake."""

VANISH_OVER_BYTES: Final = 700
"""A client that vanished takes no longer packet than this."""


class Then(Enum):
    """What the client does when it has read what it wants."""

    GO_ON = auto()
    READ_TO_END = auto()
    CLOSE = auto()
    RESET = auto()
    VANISH = auto()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what comes of it.

    The client reads `read` bytes (all, when None) and goes on. `cut` is where its request is cut.
    """

    truth: Truth
    script: tuple[Step, ...]
    headers: bytes = b""
    read: int | None = None
    then: Then = Then.GO_ON
    half_close: bool = False
    cut: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """Exchanges on one connection; between some of them another request, which is no stream."""

    address: int
    exchanges: tuple[Exchange, ...]
    receive_buffer: int | None = None
    others: bool = False

    @property
    def vanishes(self) -> bool:
        """Whether its client goes without a word."""
        return self.exchanges[-1].then is Then.VANISH


Maker = Callable[[Random], Exchange]
"""Makes one exchange of a kind."""


def all_bytes(exchange: Exchange) -> bytes:
    """What the server sends of an exchange."""
    before = b"HTTP/1.1 100 Continue\r\n\r\n" if exchange.headers else b""
    return before + sent_by(exchange.script)
