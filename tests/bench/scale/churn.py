"""Connections that come and go: how many a second, at what cost, and whether each was seen."""

import json
import time
from pathlib import Path
from typing import Final

from tests.bench.ground import Ground, Part
from tests.bench.scale.short_server import ANSWER, CHUNKS, EVENT
from tests.bench.scale.streams import SLO, heard, totals, watching
from tests.bench.scale.usage import cpu_ns
from tests.kernel.agent.rig import Sitsd
from tests.kernel.agent.waiting import becomes
from tests.kernel.bpf.child import child

HERE: Final = Path(__file__).parent
LATE_S: Final = 3.0
"""For so long the agent may be behind."""


def measure(ground: Ground, a_second: int, seconds: float) -> Part:
    """As many of `a_second` connections as this machine makes, one stream each, watched and not."""
    group = ground.make_group("short")
    targets = f'[engines.short]\ncgroup = "/{group.cpu.name}"\n{SLO}\n'
    with child(str(HERE / "short_server.py"), group=group) as server:
        server.tell()
        port = server.answer()
        _, alone = exchanges(port, a_second, seconds)
        with watching(ground, targets) as sitsd:
            sitsd.engine(lambda engine: int(port) in engine["ports"])
            agent = sitsd.process.pid
            before = cpu_ns(agent)
            made, reached = exchanges(port, a_second, seconds)
            used = (cpu_ns(agent) - before) / 1e7 / seconds
            found = seen(sitsd, made)
    return {
        "asked_per_s": a_second,
        "reached_per_s": round(reached),
        "reached_unwatched_per_s": round(alone),
        "agent_cpu_percent": round(used, 1),
        "connections": made,
        **found,
    }


def exchanges(port: str, a_second: int, seconds: float) -> tuple[int, float]:
    """How many were made, and how many that is in a second."""
    arguments = (port, str(len(ANSWER)), str(a_second), str(seconds))
    with child(str(HERE / "short_clients.py"), *arguments) as clients:
        clients.tell()
        made, took_s = json.loads(clients.answer())
    return made, made / took_s


def seen(sitsd: Sitsd, made: int) -> Part:
    """What the kernel counted and what the agent heard of so many streams."""
    becomes(lambda: totals(sitsd)["ends_complete"] + totals(sitsd)["ends_early"] >= made)
    # what it still has to hear is in the ring
    deadline = time.monotonic() + LATE_S
    while (told := heard(sitsd)) < made and time.monotonic() < deadline:
        time.sleep(0.1)
    counted, health = totals(sitsd), sitsd.api.status()["health"]
    true = {
        "requests": made,
        "chunks": CHUNKS * made,
        "body_bytes": CHUNKS * len(EVENT) * made,
        "ends_complete": made,
        "ends_early": 0,
    }
    return {
        "total_mismatch": {
            name: [value, counted[name]] for name, value in true.items() if counted[name] != value
        },
        "unheard": made - told,
        "event_drops": health["event_drops"],
        "lost": sum(health.values()) - health["event_drops"],
    }
