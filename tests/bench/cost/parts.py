"""The parts of the bench, in their order, and the keys that each of them has to find."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from . import commands, footprint, loop, overhead, plugin, scale, scrape, streaming
from .extent import Extent
from .figures import Figure, Found

_LAST_WORDS: Final = 300


@dataclass(frozen=True, slots=True)
class Part:
    """What measures, and what it measures."""

    measure: Callable[[Extent], Found]
    keys: tuple[str, ...]


PARTS: Final[Mapping[str, Part]] = {
    "overhead": Part(
        overhead.measure,
        (
            "overhead.switch_ns",
            "overhead.wakeup_ns",
            "overhead.peer_switch_ns",
            "overhead.switch_ratio",
            "overhead.pingpong_slowdown",
            "overhead.peer_pingpong_slowdown",
        ),
    ),
    "streams": Part(streaming.measure, ("overhead.packet_ns", "overhead.stream_throughput_ratio")),
    "loop": Part(loop.measure, (*loop.STAGES, "loop.reaction_ms_p50", "loop.reaction_ms_p99")),
    "footprint": Part(
        footprint.measure,
        (
            "footprint.rss_mb",
            "footprint.cpu_percent_idle",
            "footprint.cpu_percent_100_streams",
            "footprint.load_ms",
            "footprint.bcc_load_ms",
        ),
    ),
    "scrape": Part(scrape.measure, ("scrape.ms_200_targets", "scrape.loop_disturbance_ratio")),
    "commands": Part(commands.measure, ("cli.status_ms",)),
    "plugin": Part(plugin.measure, ("plugin.step_us",)),
    "scale": Part(scale.measure, scale.KEYS),
}


def run(part: Part, extent: Extent) -> tuple[Found, str]:
    """What a part found, and what stopped it if something did: then its figures say so.

    Whatever that is, the other parts go on.
    """
    try:
        found = part.measure(extent)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:_LAST_WORDS]
        return {key: Figure(note=f"failed: {why}") for key in part.keys}, why
    return {key: found[key] for key in part.keys}, ""
