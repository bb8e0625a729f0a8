"""The stages of an engine as the API answers them, with a sentence that says which one holds up."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from agent.sockets import EngineSockets
from agent.stages import FLOORS, SAMPLE_NS, UNITS, Report, Sample, Stage, StageReport, analyse

SHOWN_CONNECTIONS: Final = 100


def stages_answer(
    engine: str,
    samples: list[Sample],
    sockets: EngineSockets,
    factor: float,
    floor: float | None,
) -> dict[str, Any]:
    """`GET /v1/stages`, as docs/sitsctl.md describes it."""
    floors = FLOORS if floor is None else dict.fromkeys(Stage, floor)
    report = analyse(samples, factor, floors)
    return {
        "engine": engine,
        "seconds": report.seconds,
        "samples": report.samples,
        "sample_ms": SAMPLE_NS / 1e6,
        "held_up_at": report.held_up_at,
        "verdict": verdict(engine, report),
        "factor": factor,
        "stages": [_stage(each) for each in report.stages],
        "links": [asdict(each) for each in report.links],
        "listeners": [
            {"port": each.port, "backlog": each.backlog, "limit": each.limit}
            for each in sockets.listeners
        ],
        "sockets": sockets_answer(sockets),
        "connections": [
            {
                "connection": each.cookie,
                "remote": each.remote_name,
                "port": each.port,
                "seeded": each.cookie in sockets.seeded,
                "unread_bytes": each.unread_bytes,
                "unsent_bytes": each.unsent_bytes,
                "in_flight_bytes": each.in_flight_bytes,
            }
            for each in sockets.connections[:SHOWN_CONNECTIONS]
        ],
    }


def sockets_answer(sockets: EngineSockets) -> dict[str, Any]:
    """An engine's sockets in sums."""
    return {
        "connections": len(sockets.connections),
        "seeded": len(sockets.seeded),
        "accept_backlog": sockets.backlog,
        "accept_limit": sockets.backlog_limit,
        "unread": sockets.unread,
        "unsent": sockets.unsent,
        "unsent_bytes": sockets.unsent_bytes,
        "in_flight_bytes": sockets.in_flight_bytes,
        "detail": sockets.detail,
    }


def verdict(engine: str, report: Report) -> str:
    """One sentence about an engine's stages."""
    if not report.stages:
        return f"nothing is known of the stages of {engine} yet"
    stages = {each.stage: each for each in report.stages}
    if report.held_up_at is None:
        return f"no stage of {engine} holds requests up"
    return f"{engine} holds requests up {_HELD_UP[report.held_up_at](stages)}"


def _accept(stages: Mapping[Stage, StageReport]) -> str:
    return (
        "before it accepts them: "
        f"{_mean(stages[Stage.ACCEPT])} connections wait in its accept queue"
    )


def _receive(stages: Mapping[Stage, StageReport]) -> str:
    return (
        "before it reads them: "
        f"{_mean(stages[Stage.RECEIVE])} requests lie unread in its receive queues"
    )


def _waiting(stages: Mapping[Stage, StageReport]) -> str:
    return (
        f"before it starts them: {_mean(stages[Stage.WAITING])} wait"
        f" beside {_mean(stages[Stage.RUNNING])} that run"
    )


def _send(stages: Mapping[Stage, StageReport]) -> str:
    return (
        f"in its send queues: {_mean(stages[Stage.SEND])} streams have unsent bytes, whose clients"
        " or network take them slower than it writes"
    )


_HELD_UP: Final = {
    Stage.ACCEPT: _accept,
    Stage.RECEIVE: _receive,
    Stage.WAITING: _waiting,
    Stage.SEND: _send,
}


def _mean(stage: StageReport) -> str:
    return "unknown" if stage.queue_mean is None else f"{stage.queue_mean:.3g}"


def _stage(report: StageReport) -> dict[str, Any]:
    unit, flows = UNITS[report.stage]
    return asdict(report) | {"queue_unit": unit, "rate_unit": flows}
