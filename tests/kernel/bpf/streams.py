"""One stream from its request to its end, as the kernel saw it."""

from collections.abc import Iterable

from bpf.layout import EndReason, Event
from tests.kernel.bpf import wire
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.wire import Client


def follow(engine: Engine, *script: wire.Step) -> Event:
    """Run one script on a connection of its own; returns how the kernel saw it end."""
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(*script)
        return look.end()


def assert_complete(end: Event, chunks: int, body_bytes: int) -> None:
    assert end.reason is EndReason.COMPLETE
    assert (end.stream.chunks, end.stream.body_bytes) == (chunks, body_bytes)


def of(payloads: list[bytes]) -> tuple[int, int]:
    """What is to be counted of these: chunks that show something, and all bytes.

    The mark shows nothing, nor do chunks of whole comments and empty lines only.
    """
    return len(shown(payloads)), sum(map(len, payloads))


def shown(payloads: Iterable[bytes]) -> list[bytes]:
    """The chunks with more than comments, empty lines and the mark."""
    found, before = [], b"\n"
    for payload in payloads:
        in_a_line = not before.endswith((b"\n", b"\n\r"))
        lines = (before[-1:] + payload).split(b"\n")[1:]
        says = in_a_line or any(line[:1] not in {b"", b":", b"\r"} for line in lines)
        is_mark = payload.endswith((b"[DONE]\n\n", b"[DONE]\r\n\r\n"))
        ended = events(before + payload) - events(before) if is_mark or not says else 0
        if ended > is_mark or (says and not is_mark):
            found.append(payload)
        before += payload
    return found


def events(body: bytes) -> int:
    """The events in a body: paragraphs with a line of data, the one field that begins with a d."""
    paragraphs = body.replace(b"\n\r\n", b"\n\n").split(b"\n\n")[:-1]
    return sum(b"\nd" in b"\n" + paragraph for paragraph in paragraphs)
