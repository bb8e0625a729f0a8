"""One stream from its request to its end, as the kernel saw it."""

from bpf.layout import EndReason, Event
from tests.kernel.bpf import wire
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.wire import (
    Client,
)


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
    """What is to be counted of these: chunks without the mark, bytes with it."""
    marks = sum(payload.startswith(b"data: [DONE]") for payload in payloads)
    return len(payloads) - marks, sum(map(len, payloads))
