"""Server-sent events as engines send them, from a seeded generator; each knows what it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

Chunk = tuple["Frame", ...]


class What(Enum):
    """What a frame is to its reader."""

    TOKEN = auto()
    ROLE = auto()
    COMMENT = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Frame:
    """One paragraph of a body of events."""

    what: What
    data: bytes


_WORDS: Final = (
    *("the", " stream", " of", " tokens", "\\n\\n", ' \\"role\\":', " [DONE]"),
    *(" é", " 数", "data: ", "{}", ""),
)
_ROLES: Final = (
    '{"role":"assistant"}',
    '{"role":"assistant","content":""}',
    '{"role":"assistant","content":null}',
    '{"role": "assistant", "content": ""}',
    '{"role":"assistant","content":"","reasoning_content":null,"tool_calls":[]}',
)
_CALLS: Final = '{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}'


def texts(random: Random) -> str:
    """Some words, escaped as in JSON; never empty."""
    return "".join(random.choice(_WORDS) for _ in range(random.randint(0, 6))) + "."


def completion(random: Random, newline: bytes) -> Frame:
    """A completion's token."""
    return _event(f'{{"id":"c","choices":[{{"index":0,"text":"{texts(random)}"}}]}}', newline)


def chat(random: Random, newline: bytes) -> Frame:
    """A chat's token: a text, a text beside a role, a reasoning, or a tool call."""
    delta = random.choice(
        (
            f'{{"content":"{texts(random)}"}}',
            f'{{"content": "{texts(random)}"}}',
            f'{{"role":"assistant","content":"{texts(random)}"}}',
            f'{{"role":"assistant","content":"","reasoning_content":"{texts(random)}"}}',
            f'{{"content":null,{_CALLS[1:]}',
        )
    )
    return _event(_delta(delta), newline)


def role(random: Random, newline: bytes) -> Frame:
    """A chat's first frame: who speaks, and no text."""
    return Frame(What.ROLE, _event(_delta(random.choice(_ROLES)), newline).data)


def comment(newline: bytes) -> Frame:
    """What keeps a connection alive."""
    return Frame(What.COMMENT, b": ping" + newline * 2)


def done(newline: bytes) -> Frame:
    """The mark that ends an OpenAI-style stream."""
    return Frame(What.DONE, b"data: [DONE]" + newline * 2)


def named(random: Random, newline: bytes) -> Frame:
    """An event of several lines."""
    lines = (b"event: delta", b"id: %d" % random.randint(1, 99), b'data: {"a":', b"data: 1}")
    return Frame(What.TOKEN, newline.join(lines) + newline * 2)


@dataclass(frozen=True, slots=True)
class Counted:
    """What is to be counted of a body of events: data chunks, their events, and role frames."""

    chunks: int
    events: int
    role_frames: int


def count(chunks: Iterable[Chunk]) -> Counted:
    """By the meaning of the frames: a chunk of role frames before the first token is none, nor is
    one with nothing but comments and the mark."""
    shown = events = roles = 0
    for chunk in chunks:
        kinds = [frame.what for frame in chunk if frame.what in {What.TOKEN, What.ROLE}]
        if not kinds:
            continue
        if not shown and What.TOKEN not in kinds:
            roles += len(kinds)
            continue
        shown += 1
        events += len(kinds)
    return Counted(shown, events, roles)


def data_of(chunk: Chunk) -> bytes:
    """A chunk's payload."""
    return b"".join(frame.data for frame in chunk)


def _delta(delta: str) -> str:
    return f'{{"id":"c","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}'


def _event(json: str, newline: bytes) -> Frame:
    return Frame(What.TOKEN, b"data: " + json.encode() + newline * 2)
