"""Service classes of what runs beside the engines, and how far discovery may go on its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from controller.policy_rules import class_name, number, switch, whole
from controller.policy_tables import Key

LONGEST_FREEZE_MS: Final = 5000
"""What the limiter takes: longer, and peers of what is frozen give their connections up."""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """How far work of one class may be held back while an engine's SLO is at risk.

    Without a class a neighbour may be made idle, is never frozen, and its quota is bounded by
    `min_cores` alone.
    """

    name: str = ""
    cpu_share: Annotated[
        float,
        Key(
            number(0.01, 1),
            "Share of the machine's CPUs that each neighbour of the class may use while it is held,"
            " and its weight when what the SLO leaves over is dealt out; of an engine: what meeting"
            " its SLO is worth beside other engines.",
        ),
    ] = 1.0
    freeze_ms: Annotated[
        int,
        Key(
            whole(0, LONGEST_FREEZE_MS, "ms"),
            "Longest freeze, when neither weight nor quota is enough; 0 means never.",
        ),
    ] = 0
    retry_ms: Annotated[
        int,
        Key(whole(1, 60_000, "ms"), "How long it runs, at the least, between two freezes."),
    ] = 1000
    idle: Annotated[
        bool,
        Key(
            switch(),
            "Whether it may be made idle (`cpu.idle`), the first thing that is done: it then runs"
            " when nothing beside it wants to, and gets all the CPU that is left, which may be"
            " none.",
        ),
    ] = True


NO_CLASS: Final = ServiceClass()
"""What a neighbour or an engine without a class has."""

BUILT_IN: Final[Mapping[str, ServiceClass]] = {
    "slo-a": ServiceClass("slo-a", 0.70, 200, 50),
    "slo-b": ServiceClass("slo-b", 0.25, 800, 200),
}
"""Classes that need no table (seed B8's back-fill table: CPU share, longest freeze, retry)."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is found without being named."""

    limit_found: Annotated[
        bool,
        Key(
            switch(),
            "Whether cgroups that no table names may be limited while the kernel sees them take an"
            " engine's CPU; without it they are only named.",
        ),
    ] = False
    found_class: Annotated[
        str | None, Key(class_name(), "The class of those that are limited so.")
    ] = None
    annotations: Annotated[
        bool,
        Key(
            switch(),
            "Whether `SITS_SLO_TTFT_MS`, `SITS_SLO_GAP_MS` and `SITS_CLASS` in the environment of a"
            " target's first process stand for the policy's values.",
        ),
    ] = False
