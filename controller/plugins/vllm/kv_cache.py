"""How full vLLM's KV cache is, in tokens."""

from typing import Any


class KvCache:
    """The block pool of one scheduler. Blocks kept only for their prefixes count as free.

    Of its `blocks`, `queue.num_free_blocks` are free; each is `size` tokens of one of the model's
    `groups` of layers.
    """

    def __init__(self, scheduler: Any) -> None:
        pool = scheduler.kv_cache_manager.block_pool
        groups = len(getattr(scheduler.kv_cache_config, "kv_cache_groups", ())) or 1
        size = getattr(scheduler, "block_size", None) or scheduler.cache_config.block_size
        # what the pool's own method returns, a call cheaper, where the queue behind it is known
        queue = getattr(pool, "free_block_queue", None)
        self.queue: Any = queue if hasattr(queue, "num_free_blocks") else _Asked(pool)
        self.blocks = max(0, int(pool.num_gpu_blocks) - 1)  # one stands for "none"
        self.size = int(size)
        self.groups = groups
        self.total = self.blocks * self.size // groups

    def used(self) -> int:
        """Tokens whose place is taken."""
        used: int = (self.blocks - self.queue.num_free_blocks) * self.size // self.groups
        return used

    def free_share(self) -> float:
        """Of the blocks, 0 where there are none."""
        return float(self.queue.num_free_blocks / self.blocks) if self.blocks else 0.0


class _Asked:
    """A pool whose queue is not known, as that queue."""

    def __init__(self, pool: Any) -> None:
        self._free = pool.get_num_free_blocks

    @property
    def num_free_blocks(self) -> int:
        return int(self._free())
