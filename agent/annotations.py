"""What a target says of itself in its environment: its SLO and its service class (seed B17).

The environment is that of the target's oldest process when it was started: a systemd unit's
`Environment=`, a container's `env`. It counts only where the policy asks for it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from agent.discovery import Found, Surroundings
from controller.policy_model import Engine, Policy

TTFT: Final = "SITS_SLO_TTFT_MS"
GAP: Final = "SITS_SLO_GAP_MS"
CLASS: Final = "SITS_CLASS"
RANGES_MS: Final[Mapping[str, tuple[float, float]]] = {TTFT: (1, 600_000), GAP: (1, 60_000)}
"""As the policy allows them."""


def environment_of(pids: Iterable[int]) -> Mapping[str, str]:
    """The annotations of the oldest of these processes; none if it can't be read."""
    oldest = min(filter(None, map(_started, pids)), default=None)
    if oldest is None:
        return {}
    try:
        text = Path(f"/proc/{oldest[1]}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name in (TTFT, GAP, CLASS)}


def annotated(policy: Policy, said: Mapping[str, Mapping[str, str]]) -> tuple[Policy, list[str]]:
    """The policy with what its targets say of themselves, by name, and what of that is no use."""
    problems: list[str] = []
    engines = tuple(
        _annotated(policy, each, said.get(each.name, {}), problems) for each in policy.engines
    )
    return replace(policy, engines=engines), problems


def class_said(policy: Policy, said: Mapping[str, str]) -> str | None:
    """The class that a target says it is of, if there is such a class."""
    name = said.get(CLASS)
    return name if name in policy.all_classes else None


@dataclass(frozen=True, slots=True)
class Said:
    """The policy with what the targets say, and what of that is no use."""

    policy: Policy
    problems: list[str]


class Annotations:
    """Reads each target's environment once for as long as its processes stay."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[frozenset[int], Mapping[str, str]]] = {}

    def add(self, policy: Policy, found: Surroundings) -> tuple[Surroundings, Said]:
        """What was found with the neighbours' own classes, and the policy that goes with it."""
        if not policy.discovery.annotations:
            return found, Said(policy, [])
        said = self.look(found)
        neighbours = tuple(
            replace(each, annotated_class=class_said(policy, said.get(each.name, {})))
            for each in found.neighbours
        )
        return replace(found, neighbours=neighbours), Said(*annotated(policy, said))

    def look(self, found: Surroundings) -> Mapping[str, Mapping[str, str]]:
        """What the targets say, by name."""
        targets: dict[str, Found] = {
            each.name: each for each in (*found.engines, *found.neighbours)
        }
        read = {}
        for name, each in targets.items():
            known = self._read.get(name)
            # who was there then and is still may have been the oldest
            if known is None or not known[0] or not known[0] <= each.pids:
                known = each.pids, environment_of(each.pids)
            read[name] = known
        self._read = read
        return {name: said for name, (_, said) in read.items() if said}


def _annotated(
    policy: Policy, engine: Engine, said: Mapping[str, str], problems: list[str]
) -> Engine:
    slo = engine.slo
    for name, field in ((TTFT, "ttft_ms"), (GAP, "gap_ms")):
        if name not in said:
            continue
        low, high = RANGES_MS[name]
        try:
            value = float(said[name])
        except ValueError:
            value = -1.0
        if low <= value <= high:
            slo = replace(slo, **{field: value})
        else:
            problems.append(
                f"{engine.name}: {name} in its environment is no number of ms from {low:g} to"
                f" {high:g}"
            )
    its = class_said(policy, said)
    if CLASS in said and its is None:
        problems.append(f"{engine.name}: {CLASS} in its environment is no class of the policy")
    return replace(engine, slo=slo, service_class=its or engine.service_class)


def _started(pid: int) -> tuple[float, int] | None:
    try:
        return psutil.Process(pid).create_time(), pid
    except psutil.Error:
        return None
