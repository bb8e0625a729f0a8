"""vLLM's scheduler without a model, in vLLM's own environment: steps by hand, a token a sequence.

The scheduler, its queue and its KV cache are vLLM's own; only the model's answer is made up. Runs
where vLLM is installed, with the plug-in on PYTHONPATH.
"""

from collections import deque
from itertools import count
from typing import Any

import torch
from sits_vllm import Scheduler
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16


def configuration(model: str, **options: Any) -> Any:
    """vLLM's configuration for these engine arguments."""
    chosen = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 2048}
    return EngineArgs(
        model=model,
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        block_size=BLOCK,
        **{**chosen, **options},
    ).create_engine_config()


class Core:
    """A loop like EngineCore's, with one step in flight, or two where scheduling is ahead."""

    def __init__(
        self, config: Any, *, ahead: bool = False, blocks: int = 10_000, plugin: bool = True
    ) -> None:
        config.scheduler_config.async_scheduling = ahead
        config.scheduler_config.scheduler_cls = None
        config.cache_config.num_gpu_blocks = blocks
        made = Scheduler if plugin else config.scheduler_config.get_scheduler_cls()
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.scheduler = made(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.finished: list[str] = []
        self._in_flight: deque[Any] = deque()
        self._depth = 2 if ahead else 1
        self._names = (f"r{number}" for number in count())

    def add(self, prompt_tokens: int, answer_tokens: int) -> str:
        """A request comes."""
        name = next(self._names)
        params = SamplingParams(max_tokens=answer_tokens, ignore_eos=True, temperature=0)
        params.update_from_generation_config({}, 1)
        self.scheduler.add_request(Request(name, [5] * prompt_tokens, params, None))
        return name

    def abort(self, name: str) -> None:
        """Its client went away."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> dict[str, int]:
        """Plan one step, and take the oldest back once as many are under way as may be."""
        plan = self.scheduler.schedule()
        tokens = dict(plan.num_scheduled_tokens)
        done = [name for name in tokens if self._samples(name)]
        self._in_flight.append((plan, done))
        if len(self._in_flight) >= self._depth:
            self._take()
        return tokens

    def settle(self) -> None:
        """Take back what is under way."""
        while self._in_flight:
            self._take()

    def run(self, steps: int = 100_000) -> int:
        """Step until nothing is left; returns how many steps that took."""
        for number in range(steps):
            if not self.scheduler.has_requests():
                self.settle()
                return number
            self.step()
        raise RuntimeError("it does not come to an end")

    def _samples(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _take(self) -> None:
        plan, done = self._in_flight.popleft()
        names = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if name in done else [] for name in names],
        )
        for made in self.scheduler.update_from_output(plan, output).values():
            self.finished += [
                each.request_id for each in made.outputs if each.finish_reason is not None
            ]
