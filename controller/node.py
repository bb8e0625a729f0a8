"""The machine as its engines share it: who gets how much of the CPU, looked at once a second."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from controller.cpu_limits import CpuView
from controller.engine_cpus import cpus_of
from controller.limits.cgroup import Group
from controller.neighbour_limits import NeighbourView
from controller.neighbour_watch import NeighbourWatch
from controller.node_budget import Claim, is_off, smoothed, weight_caps
from controller.policy_model import Policy
from controller.signals import Signals
from controller.tenancy import Tenancy
from controller.watch import EngineWatch

EVERY_NS: Final = 1_000_000_000
MOST: Final = 10_000
"""The highest weight there is; what a policy allows is less or as much."""


class Node:
    """Budgets of engines that share CPUs, and weights of tenants."""

    def __init__(self, cpus: int) -> None:
        """`cpus` are those of the machine."""
        self._cpus = cpus
        self._tenancy = Tenancy()
        self._wanted: dict[str, float] = {}
        self._caps: Mapping[str, int] = {}
        self._looked_ns = 0

    @property
    def tenants(self) -> Mapping[str, int]:
        """The weight that each tenant has by itself."""
        return self._tenancy.weights

    def look(
        self,
        policy: Policy,
        now_ns: int,
        watches: Collection[EngineWatch],
        neighbours: Collection[NeighbourWatch],
        groups: Mapping[str, Group],
    ) -> None:
        """Divide again, if a second has passed; `groups` are the neighbours' cgroups."""
        if now_ns - self._looked_ns < EVERY_NS:
            return
        engines = [
            (watch, watch.signals)
            for watch in watches
            if not watch.follows and watch.signals is not None
        ]
        if not engines:
            return
        self._looked_ns = now_ns
        self._divide(policy, engines)
        self._tenancy.look(
            now_ns,
            {watch.policy.name: watch.policy.weight for watch, _ in engines}
            | {each.target.name: each.target.weight for each in neighbours},
            {w.policy.name: w.group for w, _ in engines if w.group is not None} | dict(groups),
            {w.policy.name: (signals, w.policy.slo.attainment) for w, signals in engines},
        )

    def view(self, watch: EngineWatch, limitable: tuple[NeighbourView, ...]) -> CpuView:
        """What can be done about an engine's CPU."""
        name, most = watch.policy.name, watch.policy.limits.cpu_weight_max
        weight = watch.base_weight if most > 0 and not watch.follows else None
        tenant = self.tenants.get(name)
        return CpuView(
            weight,
            min(most, self._caps.get(name, MOST)),
            self._cpus,
            () if watch.follows else limitable,
            min(tenant, most) if tenant is not None else None,
        )

    def status(self, name: str) -> dict[str, Any]:
        """What an engine has of the machine, for a `status` message."""
        return {
            "wanted_cores": self._wanted.get(name),
            "weight_cap": self._caps.get(name, MOST),
            "tenant_weight": self.tenants.get(name),
        }

    def close(self) -> None:
        """Close what is open."""
        self._tenancy.close()

    def _divide(self, policy: Policy, engines: Collection[tuple[EngineWatch, Signals]]) -> None:
        names = {watch.policy.name for watch, _ in engines}
        self._wanted = {name: cores for name, cores in self._wanted.items() if name in names}
        if len(engines) < 2:
            self._caps = {}
            return
        claims = []
        for watch, signals in engines:
            cpus, name = cpus_of(watch.group), watch.policy.name
            kernel = signals.kernel
            wants_ns = kernel.run_ns + kernel.wait_other_ns
            cores = min(wants_ns / signals.window_ns, len(cpus)) if signals.window_ns else 0.0
            self._wanted[name] = smoothed(self._wanted.get(name), cores)
            value = policy.class_of(watch.policy.service_class).cpu_share
            claims.append(Claim(name, value, self._wanted[name], cpus))
        caps = weight_caps(claims, MOST)
        if is_off(self._caps, caps):
            self._caps = caps
