"""The time of a GPU divided among the engines on it, by what meeting each one's SLO is worth.

Advice: no engine's share of a GPU can be set while it runs (docs/gpu.md says what could be done
with it). The law is the one that CPUs are divided by, `controller.node_budget`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.gpu import Owner
from agent.gpu_model import Device
from agent.gpu_owners import ENGINE
from controller.node_budget import FULL, Claim, divide


@dataclass(frozen=True, slots=True)
class Worth:
    """What meeting an engine's SLO is worth beside others, and how much load it has.

    `load_ratio` is how many engines like this one its load needs (`controller.advice`), None while
    that is not known.
    """

    value: float
    load_ratio: float | None = None


def gpu_shares(
    device: Device, owners: Mapping[int, Owner], worth: Mapping[str, Worth]
) -> dict[str, float]:
    """Each engine's share of a GPU's time, 0…1; nothing where it has enough for all it serves.

    An engine wants what it uses, and as many times that as its load is above what it can do. Its
    use is unknown under MIG, and without rights: then there is nothing to divide.
    """
    used: dict[str, float] = {}
    for each in device.processes:
        owner = owners.get(each.pid)
        if owner is None or owner.target is None:
            continue
        if owner.kind != ENGINE or owner.target not in worth:
            continue
        if each.sm_percent is None:
            return {}
        used[owner.target] = used.get(owner.target, 0.0) + each.sm_percent / 100
    claims = [
        Claim(name, worth[name].value, min(1.0, use * max(1.0, worth[name].load_ratio or 1.0)))
        for name, use in used.items()
    ]
    if len(claims) < 2 or sum(claim.cores for claim in claims) <= FULL:
        return {}
    return divide(claims, 1.0)
