"""A vLLM plug-in with which the CPU build schedules ahead: a test's, nobody else's.

`CpuPlatform.check_and_update_config` turns asynchronous scheduling off, whatever was asked for,
since a CPU gains nothing by it. Here it is put back. What the model's runner then does with CUDA's
streams and events is nothing on a CPU: tensors are where they are to be copied to. vLLM loads this
in each of its processes. At the first step that is planned ahead it writes the file
`SITS_TEST_AHEAD`: the name of the scheduler's class, and what that extends.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch


class Nothing:
    """A stream or an event of a device that has none."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cpu")

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _: Any) -> None: ...


def register() -> None:
    """What vLLM calls, more than once."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    if getattr(CpuPlatform, "is_ahead", False):
        return
    CpuPlatform.is_ahead = True
    check = CpuPlatform.check_and_update_config.__func__
    planned = AsyncScheduler._update_after_schedule

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    def update_after_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen = Path(os.environ["SITS_TEST_AHEAD"])
        if not seen.exists():
            names = [each.__name__ for each in type(self).__mro__[:2]]
            seen.write_text(" ".join(names))
        return planned(self, *args, **kwargs)

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    AsyncScheduler._update_after_schedule = update_after_schedule
    torch.cuda.Event = torch.cuda.Stream = Nothing
    torch.cuda.current_stream = lambda *_: Nothing()
    torch.cuda.stream = lambda _: nullcontext()
