"""What discovery found as the controller is told it: rows, cgroups, and how far each may go."""

from collections.abc import Mapping
from typing import Any, Final

from agent.discovery import Found, Surroundings
from controller.policy_model import Neighbour, Policy
from controller.wire import EngineTarget, NeighbourTarget, targets_message

LEAST_CORES: Final = 0.05
"""No cgroup that the policy does not name is held to less."""


def targets_of(found: Surroundings, rows: Mapping[str, int], policy: Policy) -> Mapping[str, Any]:
    """The `targets` message: all that is present."""
    settings = {neighbour.name: neighbour for neighbour in policy.neighbours}
    engines = [
        EngineTarget(each.name, rows.get(each.name, 0), each.cgroup)
        for each in found.engines
        if each.present
    ]
    neighbours = [
        neighbour_target(
            each, rows.get(each.name, 0), policy, settings.get(each.name.partition("/")[0])
        )
        for each in found.neighbours
        if each.present
    ]
    return targets_message(engines, neighbours)


def neighbour_target(
    found: Found, row: int, policy: Policy, settings: Neighbour | None
) -> NeighbourTarget:
    """One neighbour. Without `settings` no table names it, but the kernel did."""
    named = settings.service_class if settings is not None else policy.discovery.found_class
    its = policy.class_of(found.annotated_class or named)
    return NeighbourTarget(
        found.name,
        row,
        found.cgroup,
        settings.limit if settings is not None else policy.discovery.limit_found,
        settings.min_cores if settings is not None else LEAST_CORES,
        its.name,
        its.cpu_share,
        its.freeze_ms,
        its.retry_ms,
        settings.weight if settings is not None else 0,
        its.idle,
    )
