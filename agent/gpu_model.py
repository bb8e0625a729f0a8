"""GPUs as one look at them through NVML shows them; what is not known is None, never 0."""

from dataclasses import dataclass
from typing import Any, Final

from controller.codec import decode, encode

NONE: Final = "none"
NO_DRIVER: Final = "no driver"
FAILED: Final = "failed"
HUNG: Final = "hung"
OK: Final = "ok"
OFF: Final = "off"
STATES: Final = (OK, NONE, NO_DRIVER, FAILED, HUNG, OFF)
"""`none`: no NVML library; `no driver`: a library that finds no driver; `hung`: a call into it has
not come back; `off`: the policy asks for nobody to look."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU.

    `sm_percent` is the share of time that kernels of it ran, over the last samples of the driver,
    as `nvmlDeviceGetProcessUtilization` has it. `instance` names the MIG instance it is in.
    """

    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: `name` as in "0/1/0" (GPU, GPU instance, compute instance)."""

    name: str
    uuid: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. `lost` says why nothing is known of it any more, empty while it answers.

    `throttled` are the reasons for which its clocks are held down now. Under MIG the driver does
    not tell how busy it is.
    """

    name: str
    uuid: str = ""
    model: str = ""
    lost: str = ""
    sm_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] | None = None
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One look: a state of `STATES`, why, the driver's version, and all GPUs."""

    state: str
    detail: str = ""
    driver: str = ""
    devices: tuple[Device, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields: dict[str, Any] = encode(self)
        return fields

    @property
    def text(self) -> str:
        """The state in a line."""
        return f"{self.state}: {self.detail}" if self.detail and self.state != OK else self.state


def look_of(fields: Any) -> Look:
    """What `Look.as_dict` made; `ValueError`, `TypeError` or `KeyError` if it is not that."""
    return decode(Look, fields)
