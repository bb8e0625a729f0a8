"""The metrics of the GPUs. What is not known has no series, and never a 0."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from agent.gpu import Owner
from agent.gpu_budget import Worth, gpu_shares
from agent.gpu_model import OFF, STATES, Device, Look
from agent.gpu_reader import THROTTLES
from controller.mps.control import State

OTHER: Final = "other"
"""Label of all processes on a GPU that are no target's: one series, whoever they are."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """The last look, whose the processes in it are, and what the engines' SLOs are worth.

    `mps` is how the limits on MPS daemons' clients stand (`MpsLimits.status`).
    """

    look: Look = field(default_factory=lambda: Look(OFF))
    owners: Mapping[int, Owner] = field(default_factory=dict)
    worth: Mapping[str, Worth] = field(default_factory=dict)
    mps: Sequence[Mapping[str, Any]] = ()


def gpu_families(figures: GpuFigures) -> Iterator[Metric]:
    """Every family of the GPUs."""
    state = GaugeMetricFamily(
        "sits_gpu_state", "1 for how the GPUs are seen: ok, or why not.", labels=["state"]
    )
    for name in STATES:
        state.add_metric([name.replace(" ", "_")], float(name == figures.look.state))
    yield state
    devices = figures.look.devices
    info = GaugeMetricFamily("sits_gpu_info", "1 for each GPU.", labels=["gpu", "uuid", "model"])
    lost = GaugeMetricFamily("sits_gpu_lost", "Whether a GPU no longer answers.", labels=["gpu"])
    throttled = GaugeMetricFamily(
        "sits_gpu_throttled",
        "Whether a GPU's clocks are held down now, by reason.",
        labels=["gpu", "reason"],
    )
    for each in devices:
        info.add_metric([each.name, each.uuid, each.model], 1.0)
        lost.add_metric([each.name], float(bool(each.lost)))
        for reason in THROTTLES.values() if each.throttled is not None else ():
            held = reason in (each.throttled or ())
            throttled.add_metric([each.name, reason.replace(" ", "_")], float(held))
    yield from (info, lost, throttled)
    for name, text, attribute, unit in (
        ("sits_gpu_use_ratio", "Share of time in which a GPU computed.", "sm_percent", 100),
        ("sits_gpu_memory_bytes", "A GPU's memory.", "memory_total_bytes", 1),
        ("sits_gpu_memory_used_bytes", "A GPU's memory in use.", "memory_used_bytes", 1),
        ("sits_gpu_power_watts", "What a GPU draws.", "power_w", 1),
        ("sits_gpu_power_limit_watts", "What a GPU may draw.", "power_limit_w", 1),
        ("sits_gpu_temperature_celsius", "A GPU's temperature.", "temperature_c", 1),
    ):
        family = GaugeMetricFamily(name, text, labels=["gpu"])
        for each in devices:
            value = getattr(each, attribute)
            if value is not None:
                family.add_metric([each.name], value / unit)
        yield family
    yield from _instances(devices)
    yield from _processes(devices, figures.owners)
    advised = GaugeMetricFamily(
        "sits_gpu_advised_share_ratio",
        "Share of a GPU's time that an engine should have by what its SLO is worth, where engines"
        " want more than there is. Nobody sets it.",
        labels=["gpu", "engine"],
    )
    for each in devices:
        for engine, share in gpu_shares(each, figures.owners, figures.worth).items():
            advised.add_metric([each.name, engine], share)
    yield advised
    yield from _mps(figures.mps)


def _mps(limits: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "sits_mps_state",
        "1 for how the limit on an MPS daemon's clients stands: ok, or why it is not held.",
        labels=["daemon", "state"],
    )
    percent = GaugeMetricFamily(
        "sits_mps_limit_percent",
        "Percent of a GPU's threads that a client of an MPS daemon gets at the most when it starts"
        " now, while the limit is held.",
        labels=["daemon"],
    )
    for each in limits:
        for name in State:
            state.add_metric([each["name"], name.replace(" ", "_")], float(each["state"] == name))
        if each["percent"] is not None:
            percent.add_metric([each["name"]], each["percent"])
    yield from (state, percent)


def _instances(devices: tuple[Device, ...]) -> Iterator[Metric]:
    total = GaugeMetricFamily(
        "sits_gpu_instance_memory_bytes", "A MIG instance's memory.", labels=["gpu", "instance"]
    )
    used = GaugeMetricFamily(
        "sits_gpu_instance_memory_used_bytes",
        "A MIG instance's memory in use.",
        labels=["gpu", "instance"],
    )
    for device in devices:
        for each in device.instances:
            if each.memory_total_bytes is not None:
                total.add_metric([device.name, each.name], each.memory_total_bytes)
            if each.memory_used_bytes is not None:
                used.add_metric([device.name, each.name], each.memory_used_bytes)
    yield from (total, used)


def _processes(devices: tuple[Device, ...], owners: Mapping[int, Owner]) -> Iterator[Metric]:
    labels = ["gpu", "target", "kind"]
    memory = GaugeMetricFamily(
        "sits_gpu_target_memory_bytes",
        "Memory that a target's processes have on a GPU.",
        labels=labels,
    )
    use = GaugeMetricFamily(
        "sits_gpu_target_use_ratio",
        "Share of time in which kernels of a target's processes ran on a GPU.",
        labels=labels,
    )
    for device in devices:
        held: dict[tuple[str, str], int] = {}
        ran: dict[tuple[str, str], float] = {}
        for each in device.processes:
            owner = owners.get(each.pid)
            known = owner is not None and owner.target is not None
            key = (owner.target or "", owner.kind) if owner and known else (OTHER, OTHER)
            if each.memory_bytes is not None:
                held[key] = held.get(key, 0) + each.memory_bytes
            if each.sm_percent is not None:
                ran[key] = ran.get(key, 0.0) + each.sm_percent / 100
        for key, count in held.items():
            memory.add_metric([device.name, *key], count)
        for key, share in ran.items():
            use.add_metric([device.name, *key], share)
    yield from (memory, use)
