"""Looks at every GPU through NVML. Runs in a process of its own: any of these calls may hang.

A figure that a GPU, a driver or our rights don't give is None; one GPU that fails leaves the
others as they are. GPUs are listed anew at each look, so one that came, went or changed its MIG
mode shows.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from agent.gpu_model import FAILED, NO_DRIVER, NONE, OK, Device, GpuProcess, Instance, Look

T = TypeVar("T")

THROTTLES: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of NVML's clocks event reasons that mean it is slower than it could be (nvml.h). Idleness
and clocks that somebody set are none."""

_NO_SLICE: Final = 0xFFFFFFFF


def load() -> tuple[Any, Look | None]:
    """The `pynvml` module, initialised, or what is in the way."""
    try:
        import pynvml
    except ImportError:
        return None, Look(NONE, "the Python package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, Look(_state_of(pynvml, error), str(error))
    return pynvml, None


class GpuReader:
    """Looks; `nvml` is the initialised module."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._seen_us: dict[str, int] = {}
        self._is_lost = False

    def look(self) -> Look:
        """All GPUs now. After one was lost, the library is initialised anew: it may be back."""
        nvml = self._nvml
        try:
            if self._is_lost:
                with suppress(nvml.NVMLError):
                    nvml.nvmlShutdown()
                nvml.nvmlInit()
                self._is_lost = False
            driver = self._try(nvml.nvmlSystemGetDriverVersion) or ""
            devices = tuple(self._device(i) for i in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            return Look(_state_of(nvml, error), str(error))
        self._is_lost = any(each.lost for each in devices)
        return Look(OK, driver=driver, devices=devices)

    def _device(self, index: int) -> Device:
        nvml, name = self._nvml, str(index)
        uuid = model = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            # the one figure that every GPU has: whether it answers at all
            memory = self._must(nvml.nvmlDeviceGetMemoryInfo, handle)
        except nvml.NVMLError as error:
            return Device(name, uuid, model, lost=str(error))
        mig = self._try(nvml.nvmlDeviceGetMigMode, handle) or [0, 0]
        instances = tuple(self._instances(handle, name)) if mig[0] else ()
        power = self._try(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._try(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        use = self._try(nvml.nvmlDeviceGetUtilizationRates, handle)
        reasons = self._try(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        celsius = self._try(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return Device(
            name=name,
            uuid=uuid,
            model=model,
            sm_percent=float(use.gpu) if use is not None else None,
            memory_total_bytes=memory.total if memory is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            power_w=power / 1e3 if power is not None else None,
            power_limit_w=limit / 1e3 if limit is not None else None,
            temperature_c=float(celsius) if celsius is not None else None,
            throttled=throttles(reasons) if reasons is not None else None,
            mig=bool(mig[0]),
            instances=instances,
            processes=tuple(self._processes(handle, name, uuid)),
        )

    def _instances(self, handle: Any, name: str) -> Iterator[Instance]:
        nvml = self._nvml
        for index in range(self._try(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            # slots without an instance are not found
            mig = self._try(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            if mig is None:
                continue
            gpu = self._try(nvml.nvmlDeviceGetGpuInstanceId, mig)
            compute = self._try(nvml.nvmlDeviceGetComputeInstanceId, mig)
            memory = self._try(nvml.nvmlDeviceGetMemoryInfo, mig)
            yield Instance(
                f"{name}/{gpu}/{compute}",
                self._try(nvml.nvmlDeviceGetUUID, mig) or "",
                memory.total if memory is not None else None,
                memory.used if memory is not None else None,
            )

    def _processes(self, handle: Any, name: str, uuid: str) -> Iterator[GpuProcess]:
        nvml = self._nvml
        use = self._process_use(handle, uuid)
        for each in self._try(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
            gpu, compute = each.gpuInstanceId, each.computeInstanceId
            whole = gpu in {None, _NO_SLICE}
            yield GpuProcess(
                each.pid,
                each.usedGpuMemory,
                use.get(each.pid, 0.0) if use is not None else None,
                "" if whole else f"{name}/{gpu}/{compute}",
            )

    def _process_use(self, handle: Any, uuid: str) -> dict[int, float] | None:
        """Each process's share of time since the last look; None where the driver won't say."""
        nvml = self._nvml
        since_us = self._seen_us.get(uuid, 0)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except nvml.NVMLError as error:
            # no samples since then; the binding also raises for a success without any
            idle = error.value in {nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS}
            return {} if idle else None
        found: dict[int, list[int]] = {}
        for sample in samples:
            if sample.timeStamp > since_us:
                found.setdefault(sample.pid, []).append(sample.smUtil)
        self._seen_us[uuid] = max((s.timeStamp for s in samples), default=since_us)
        return {pid: sum(use) / len(use) for pid, use in found.items()}

    def _try(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What the call gives; None where it is refused."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    def _must(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """As `_try`, but raises when the GPU itself is gone."""
        nvml = self._nvml
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if error.value in {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION}:
                return None
            raise


def throttles(bits: int) -> tuple[str, ...]:
    """The reasons in NVML's bit mask for which clocks are held down."""
    return tuple(word for bit, word in THROTTLES.items() if bits & bit)


def _state_of(nvml: Any, error: Any) -> str:
    states: Iterable[tuple[int, str]] = (
        (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, NONE),
        (nvml.NVML_ERROR_DRIVER_NOT_LOADED, NO_DRIVER),
    )
    return dict(states).get(error.value, FAILED)
