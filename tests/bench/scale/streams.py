"""Concurrent streams: what watching them takes, and whether each was seen as it was."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil

from tests.bench.ground import Ground, Part, private_bpffs
from tests.bench.scale.slow_server import CHUNK, EVENT, HEAD, LAST
from tests.bench.scale.usage import MB, usage
from tests.kernel.agent.rig import Site, Sitsd
from tests.kernel.agent.waiting import becomes
from tests.kernel.bpf.child import child

HERE: Final = Path(__file__).parent
GAP_S: Final = 5.0
A_SECOND: Final = 1500
"""Connections a second, while they are made."""

PAGE: Final = 1000
ENDED: Final = "sits_streams_ended_total"
SLO: Final = "slo = { ttft_ms = 60000, gap_ms = 60000 }"


@contextmanager
def watching(ground: Ground, targets: str, **agent: int) -> Iterator[Sitsd]:
    """A sitsd of its own that watches these targets; `agent` are settings of that table."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pins = stack.enter_context(private_bpffs())
        site = Site(directory, pins / f"sits-{uuid4().hex[:12]}")
        stack.callback(site.unload)
        lines = "".join(f"{name} = {value}\n" for name, value in agent.items())
        site.write(lines + targets, look_every_ms=1000)
        yield stack.enter_context(site.sitsd())


def measure(ground: Ground, count: int, seconds: float) -> Part:
    """`count` streams at once for so long: what they cost, and what was seen of them otherwise."""
    return _measure(ground, count, seconds, cut=False)


def measure_cut(ground: Ground, count: int, seconds: float) -> Part:
    """The same, but the engine is killed in the middle of all of them."""
    return _measure(ground, count, seconds, cut=True)


def _measure(ground: Ground, count: int, seconds: float, *, cut: bool) -> Part:
    group = ground.make_group("slow")
    targets = f'[engines.slow]\ncgroup = "/{group.cpu.name}"\n{SLO}\n'
    with (
        child(str(HERE / "slow_server.py"), str(GAP_S), group=group) as server,
        watching(ground, targets) as sitsd,
    ):
        server.tell()
        port = server.answer()
        sitsd.engine(lambda engine: engine["found"] and int(port) in engine["ports"])
        with child(str(HERE / "many_clients.py"), port, str(count), str(A_SECOND)) as clients:
            clients.tell()
            assert clients.answer() == "connected"
            under_way = sitsd.engine(lambda engine: engine["streams_active"] >= count)
            cost = usage(sitsd, seconds)
            if cut:
                server.kill()
            else:
                server.tell()
            told = {} if cut else numbers(server.answer())
            got = numbers(clients.answer())
        seen = ended(sitsd, count)
        rss_mb = psutil.Process(sitsd.process.pid).memory_info().rss / MB
        counted = totals(sitsd)
        health = sitsd.api.status()["health"]
    # what left before the kill is what came
    sent = {port: (size - len(HEAD)) // len(CHUNK) for port, size in got.items()} if cut else told
    wrong = differences(sent, got, seen, cut=cut)
    return cost.as_dict() | {
        "agent_rss_mb_after": round(rss_mb, 1),
        "streams": count,
        "at_once": under_way["streams_active"],
        "ended": len(seen),
        "wrong": len(wrong),
        "mismatches": wrong[:20],
        # of an engine that is gone nothing is counted any more
        "total_mismatch": {} if cut else compare_totals(sent, counted),
        "lost": sum(health.values()),
        "health": health,
    }


def numbers(line: str) -> dict[int, int]:
    """A number for each client's port."""
    return {int(port): number for port, number in json.loads(line).items()}


def totals(sitsd: Sitsd) -> Mapping[str, int]:
    """What was counted of the engine since the agent began."""
    found: dict[str, int] = sitsd.api.status()["engines"][0]["totals"]
    return found


def ended(sitsd: Sitsd, count: int) -> dict[int, dict[str, Any]]:
    """Every stream that ended, by its client's port, once there are `count` of them."""
    becomes(lambda: heard(sitsd) >= count)
    found: dict[int, dict[str, Any]] = {}
    after = 0
    while page := sitsd.api.streams(after=after, limit=PAGE)["streams"]:
        found |= {each["remote_port"]: each for each in page}
        after = page[-1]["seq"]
    return found


def heard(sitsd: Sitsd) -> int:
    """How many streams the agent has heard the end of."""
    return int(sum(n for (name, _), n in sitsd.metrics().items() if name == ENDED))


def differences(
    sent: Mapping[int, int],
    got: Mapping[int, int],
    seen: Mapping[int, Mapping[str, Any]],
    *,
    cut: bool = False,
) -> list[str]:
    """Streams seen otherwise than the server sent and the client got them."""
    wrong = []
    last, reason = (b"", "server_closed") if cut else (LAST, "complete")
    for port in sorted({*sent, *got, *seen}):
        events, size, stream = sent.get(port), got.get(port), seen.get(port)
        if events is None or size is None or stream is None:
            wrong.append(f"{port}: sent {events}, got {size}, seen {stream is not None}")
        elif size != len(HEAD) + events * len(CHUNK) + len(last):
            wrong.append(f"{port}: {events} events sent, {size} bytes got")
        elif (stream["chunks"], stream["body_bytes"], stream["reason"], stream["status"]) != (
            events,
            events * len(EVENT),
            reason,
            200,
        ):
            wrong.append(f"{port}: {events} events, seen as {stream}")
    return wrong


def compare_totals(sent: Mapping[int, int], counted: Mapping[str, int]) -> dict[str, list[int]]:
    """Counters that are not what they are to be: what is true, and what was counted."""
    events = sum(sent.values())
    true = {
        "requests": len(sent),
        "responses": len(sent),
        "first_chunks": len(sent),
        "chunks": events,
        "gaps": events - len(sent),
        "body_bytes": events * len(EVENT),
        "ends_complete": len(sent),
        "ends_early": 0,
    }
    return {name: [value, counted[name]] for name, value in true.items() if counted[name] != value}
