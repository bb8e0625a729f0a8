"""What the loop tells the agent of an engine: its part of a `status` message."""

from collections.abc import Mapping
from typing import Any

from controller.attribution import MEANING
from controller.engines.link import OWNER, EngineLink
from controller.engines.page import EngineNow
from controller.fragmentation import of_allocator
from controller.memory_watch import memory_status
from controller.watch import EngineWatch


def status_of(watch: EngineWatch) -> dict[str, Any]:
    """The engine's part of a `status` message."""
    link, model = watch.link, watch.core.model
    return {
        "admin": {
            "state": "none" if link is None else str(link.state),
            "detail": "the policy names no admin socket" if link is None else link.detail,
        },
        "admin_sockets": [] if link is None else [_socket_status(watch, link)],
        "engine": _identity(link),
        "knobs": _knobs(link, watch.core.batch.point),
        "now": _now(link.now if link is not None else None),
        "doubt": watch.figures.doubt.why if watch.figures.doubt is not None else "",
        "loads": list(watch.loads),
        "backpressure": {
            "value": watch.pressure.value,
            "accept": watch.pressure.accept,
            "queue": watch.pressure.queue,
            "send": watch.pressure.send,
            "kv": watch.pressure.kv,
            "cpu": watch.pressure.cpu,
            "injected": watch.pressure.injected,
        },
        "cause": str(watch.verdict.cause),
        "cause_meaning": MEANING[watch.verdict.cause],
        "evidence": dict(watch.verdict.evidence),
        "cause_ns": dict(watch.cause_ns),
        "lost": {
            "throttled_ns": watch.throttled_ns,
            "memory_ns": watch.group_pressure.memory_ns,
            "limit_hits": watch.group_pressure.limit_hits,
            "major_faults": watch.group_pressure.major_faults,
        },
        "cpu_weight": None
        if watch.base_weight is None
        else {"value": watch.cpu.weight or watch.base_weight, "base": watch.base_weight},
        "group_detail": watch.group_detail,
        "memory": memory_status(watch.memory.view, watch.sentinel)
        | {"gpu_fragmentation": of_allocator(link.allocator() if link is not None else None)},
        "model": {
            "trusted": model.trusted,
            "base_ms": model.base_ms,
            "prefill_ms": model.prefill_ms,
            "decode_ms": model.decode_ms,
            "kv_ms": model.kv_ms,
            "error": model.error,
            "steps": model.steps,
        },
        "plan": {
            "margin": watch.core.trim.margin,
            "prompt_tokens_per_s": watch.outlook.plan,
            "predictor": watch.outlook.predictor,
            "roll_backs": watch.core.trial.roll_backs,
            "paused": watch.paused,
        },
    }


def _socket_status(watch: EngineWatch, link: EngineLink) -> dict[str, Any]:
    """How one admin socket stands."""
    lease = link.lease
    return {
        "key": watch.key,
        "socket": str(link.path),
        "state": str(link.state),
        "detail": link.detail,
        "engine": _identity(link),
        "knobs": _knobs(link, watch.core.batch.point),
        "pending": dict(link.pending),
        "lease": None
        if lease is None
        else {"owner": lease.owner, "ours": lease.owner == OWNER, "ends_ns": lease.ends_ns},
        "last_ack": link.last_ack,
        "removed": watch.is_removed,
        "by_hand": watch.by_hand,
    }


def _identity(link: EngineLink | None) -> dict[str, str] | None:
    if link is None or link.hello is None:
        return None
    hello = link.hello
    return {"name": hello.engine, "version": hello.version, "instance": hello.instance}


def _knobs(link: EngineLink | None, point: Mapping[str, float]) -> dict[str, Any]:
    if link is None or link.hello is None:
        return {}
    return {
        name: {
            "value": link.values.get(name, knob.start),
            "start": knob.start,
            "unit": knob.unit,
            "held": name in link.held or name in point,
        }
        for name, knob in link.hello.knobs.items()
    }


def _now(engine: EngineNow | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    return {
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_use": engine.kv_used / engine.kv_total if engine.kv_total else None,
        "steps": engine.steps,
        "epoch": engine.epoch,
        "preemptions": engine.preemptions_total,
        "lease_expiries": engine.lease_expiries_total,
        "deferred": engine.deferred,
        "deferred_total": engine.deferred_total,
        "longest_deferral_ms": engine.longest_deferral_ms,
        "shed_total": engine.shed_total,
        "on_time_tokens": engine.on_time_tokens,
        "kv_total": engine.kv_total,
        "requests_total": engine.requests_total,
        "finished_total": engine.finished_total,
        "prompt_tokens_total": engine.prompt_tokens_total,
        "generated_tokens_total": engine.generated_tokens_total,
    }
