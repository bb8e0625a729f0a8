"""How full vLLM's KV cache is, in tokens."""

from typing import Any


class KvCache:
    """The block pool of one scheduler. Blocks kept only for their prefixes count as free."""

    def __init__(self, scheduler: Any) -> None:
        pool = scheduler.kv_cache_manager.block_pool
        groups = len(getattr(scheduler.kv_cache_config, "kv_cache_groups", ())) or 1
        size = getattr(scheduler, "block_size", None) or scheduler.cache_config.block_size
        self._free = pool.get_num_free_blocks
        # what that returns, a call cheaper, where the queue behind it is known
        queue = getattr(pool, "free_block_queue", None)
        self._queue = queue if hasattr(queue, "num_free_blocks") else None
        self._blocks = max(0, int(pool.num_gpu_blocks) - 1)  # one stands for "none"
        self._size = int(size)
        self._groups = groups
        self.total = self._blocks * self._size // groups

    def used(self) -> int:
        """Tokens whose place is taken."""
        free = self._free() if self._queue is None else self._queue.num_free_blocks
        used: int = (self._blocks - free) * self._size // self._groups
        return used

    def free_share(self) -> float:
        """Of the blocks, 0 where there are none."""
        return float(self._free() / self._blocks) if self._blocks else 0.0
