"""How torch's caching allocator stands on the engine's GPU, where it is in this process.

It is where one process computes and schedules. With workers of their own (tensor parallelism)
vLLM's scheduler has no GPU, and nothing is known. Nothing here begins to use one: a context of CUDA
takes hundreds of megabytes.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from controller.engines.page import Allocator

log = logging.getLogger("vllm.sits")

EVERY_S: Final = 5.0
"""A look takes tenths of a millisecond, and fragmentation grows over minutes."""

NOT_KNOWN: Final = Allocator(0, 0, 0)


def allocator_of(torch: Any) -> Allocator:
    """What could be had of the GPU that this process has most of; `NOT_KNOWN` without one.

    What the driver has free can be had, and what torch keeps. When an allocation fails torch gives
    whole segments that nobody uses back to the driver and tries again, so that they count as one
    piece with what is free there; the driver maps pages, which need not be neighbours. What is left
    in segments that are partly used (`inactive_split_bytes` of `torch.cuda.memory_stats`: inactive,
    not releasable) is in shreds.
    """
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return NOT_KNOWN
    device = max(range(cuda.device_count()), key=cuda.memory_reserved, default=None)
    if device is None or not cuda.memory_reserved(device):
        return NOT_KNOWN
    left, total = cuda.mem_get_info(device)
    stats = cuda.memory_stats(device)
    kept = stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]
    shreds = min(kept, stats["inactive_split_bytes.all.current"])
    free = left + max(0, kept)
    return Allocator(int(total), int(free), int(free - max(0, shreds)))


def follow(torch: Any, show: Callable[[Allocator], None], stop: threading.Event) -> None:
    """Show it now and then until `stop`, on a thread of its own; no more after a failure."""

    def run() -> None:
        try:
            while not stop.wait(EVERY_S):
                show(allocator_of(torch))
        except Exception as error:
            log.warning("sits does not know how torch's allocator stands: %s", error)
            show(NOT_KNOWN)

    threading.Thread(target=run, name="sits-allocator", daemon=True).start()
