"""Relegation in the reference engine, over HTTP: a backlog, then a load the engine could carry."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from controller.engines.client import call
from tests.engines.reference_process import Client, Running, reference_engine

PATIENCE_S = 20
PROMPT = [65] * 800
BACKLOG = 60
STEADY = 60


@dataclass(frozen=True, slots=True)
class Reply:
    ttft_s: float
    whole: bool


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with reference_engine() as running:
        yield running


def body(tokens: int = 2) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True}


async def ask(port: int, after_s: float) -> Reply:
    """One request on a connection of its own, sent `after_s` from now."""
    await asyncio.sleep(after_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = json.dumps(body()).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(payload)}\r\n\r\n"
    began = time.monotonic()
    writer.write(head.encode() + payload)
    await reader.readuntil(b"data: ")
    ttft_s = time.monotonic() - began
    rest = await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return Reply(ttft_s, b"[DONE]" in rest)


def send_all(engine: Running, after_s: Sequence[float]) -> list[Reply]:
    async def together() -> list[Reply]:
        return await asyncio.gather(*(ask(engine.port, each) for each in after_s))

    return asyncio.run(together())


def admin(engine: Running, name: str, **fields: Any) -> Any:
    return call(engine.admin, name, PATIENCE_S, **fields)


def stats(engine: Running) -> Any:
    return admin(engine, "stats")["now"]


def hold(engine: Running, lease_ms: int = 10_000, **values: int) -> None:
    epoch = admin(engine, "get")["epoch"] + 1
    admin(engine, "set", owner="test", epoch=epoch, lease_ms=lease_ms, values=values)


def until(true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends, f"{what} did not happen"
        time.sleep(0.002)


def alone_s(engine: Running) -> float:
    """How long a prompt takes when nothing else runs."""
    return min(reply.ttft_s for _ in range(8) for reply in send_all(engine, [0.0]))


def test_after_a_burst_relegation_serves_many_more_in_time_and_fails_none(engine: Running) -> None:
    prompt_s = alone_s(engine)
    target_s = 10 * prompt_s
    load = [0.0] * BACKLOG + [2 * prompt_s * n for n in range(STEADY)]

    def share_in_time(replies: Sequence[Reply]) -> float:
        assert all(reply.whole for reply in replies)
        return sum(reply.ttft_s <= target_s for reply in replies) / len(load)

    first_come = share_in_time(send_all(engine, load))
    before = stats(engine)["deferred_total"]
    hold(engine, ttft_deadline_ms=round(900 * target_s))
    relegated = share_in_time(send_all(engine, load))
    now = stats(engine)
    admin(engine, "release", owner="test")
    assert now["deferred_total"] - before >= 10
    assert now["deferred"] == now["waiting"] == now["shed_total"] == 0
    assert relegated > first_come + 0.2


def test_when_the_lease_ends_nobody_is_deferred_any_more() -> None:
    with reference_engine("--max-running", "1") as engine, ExitStack() as stack:
        clients = [stack.enter_context(Client(engine)) for _ in range(4)]
        hold(engine, ttft_deadline_ms=1)
        for client in clients:
            client.send("/v1/completions", body(2000))
        until(lambda: bool(stats(engine)["deferred"] == 3), "deferring")
        held = stats(engine)
        assert held["on_time_tokens"] == 0
        assert held["longest_deferral_ms"] >= 1
        hold(engine, lease_ms=1)
        until(lambda: bool(stats(engine)["deferred"] == 0), "the end of the lease")
        free = stats(engine)
        assert free["lease_expiries_total"] == 1
        assert free["waiting"] == 3
        assert free["on_time_tokens"] == 3 * len(PROMPT)
        assert free["deferred_total"] == held["deferred_total"] >= 3
