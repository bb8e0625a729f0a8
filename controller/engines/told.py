"""What an engine's link tells of itself and of the writes it made."""

from dataclasses import dataclass
from enum import StrEnum


class LinkState(StrEnum):
    """How an engine's admin socket stands."""

    NONE = "none"
    CONNECTED = "connected"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Ack:
    """What became of the `set` or `release` of decision `tag`: the journal's word for it."""

    tag: int
    ack: str
    ack_ns: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A change of state worth an event in the journal."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A lease as an answer of the engine showed it, by our clock."""

    owner: str
    ends_ns: int


@dataclass(frozen=True, slots=True)
class Vote:
    """The answer to a `prepare`, `commit` or `abort`; `code` is empty where it was done."""

    call: str
    epoch: int
    code: str = ""
    detail: str = ""
