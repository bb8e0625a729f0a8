"""What vLLM is given for its scheduler: its own, with our hand at the top and the end of a step.

`Scheduler` is one name for both flavours. It asks vLLM's own configuration which class it would
have taken without us (the asynchronous one, mostly) and extends that; to extend the other would
cost up to 80% of latency, or outputs.

vLLM serves whatever happens here: what fails at the start or in a step is told once in its log,
and from then on this is the class it extends and nothing else.
"""

import copy
import logging
from typing import Any

from controller.plugins.vllm.attach import attach
from controller.plugins.vllm.hand import Hand

log = logging.getLogger("vllm.sits")


class Scheduler:
    """For `--scheduler-cls`: what vLLM gets by calling it is an instance of its own class."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """The scheduler for this configuration; `ValueError` for one that can't be extended."""
        return extended(own_class(vllm_config))(vllm_config, *args, **kwargs)


def own_class(vllm_config: Any) -> Any:
    """The class that vLLM takes for this configuration when nobody names one."""
    if getattr(vllm_config, "diffusion_config", None) is not None:
        raise ValueError("sits has no scheduler for diffusion models: leave out --scheduler-cls")
    config = vllm_config.scheduler_config
    if hasattr(config, "get_scheduler_cls"):
        unnamed = copy.copy(config)
        unnamed.scheduler_cls = None
        return unnamed.get_scheduler_cls()
    if getattr(config, "async_scheduling", False):
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        return AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler as PlainScheduler

    return PlainScheduler


def extended(base: Any) -> Any:
    """`base`, one of vLLM's schedulers, with our hand in it."""
    # looked up once: every step pays for these two
    schedule, update_from_output = base.schedule, base.update_from_output

    class SitsScheduler(base):  # type: ignore[misc]  # vLLM's class is known only where it runs
        """vLLM's scheduler; what it is asked, it does as without us."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._sits: Hand | None = None
            super().__init__(*args, **kwargs)
            self._sits = attach(self)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            if (hand := self._sits) is not None:
                try:
                    hand.begin_step()
                except Exception as error:
                    self._sits_failed(error)
                    hand = None
            # as vLLM calls it; to pass on any number of arguments costs twice as much
            if len(args) == 1 and not kwargs:
                plan = schedule(self, args[0])
            else:
                plan = schedule(self, *args, **kwargs)
            if hand is not None:
                try:
                    hand.scheduled(plan)
                except Exception as error:
                    self._sits_failed(error)
            return plan

        def update_from_output(self, plan: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                outputs = update_from_output(self, plan, output, *args, **kwargs)
            else:
                outputs = update_from_output(self, plan, output)
            if (hand := self._sits) is not None:
                try:
                    hand.end_step(output)
                except Exception as error:
                    self._sits_failed(error)
            return outputs

        def add_request(self, request: Any) -> None:
            # a known one brings more of a prompt that it streams, and does not wait for that
            if (hand := self._sits) is not None and request.request_id not in self.requests:
                try:
                    hand.arrived(request)
                except Exception as error:
                    self._sits_failed(error)
            super().add_request(request)

        def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
            finished = super().finish_requests(*args, **kwargs)
            if (hand := self._sits) is not None:
                try:
                    hand.aborted()
                except Exception as error:
                    self._sits_failed(error)
            return finished

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            if (hand := self._sits) is not None:
                try:
                    hand.left(request)
                except Exception as error:
                    self._sits_failed(error)
            return super()._free_request(request, *args, **kwargs)

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            if (hand := self._sits) is not None:
                try:
                    hand.preempted(request)
                except Exception as error:
                    self._sits_failed(error)
            return super()._preempt_request(request, *args, **kwargs)

        def shutdown(self) -> None:
            if (hand := self._sits) is not None:
                self._sits = None
                hand.stop()
            super().shutdown()

        def _sits_failed(self, error: Exception) -> None:
            hand, self._sits = self._sits, None
            if hand is not None:
                log.exception("sits failed: vLLM goes on as it was started, without it")
                hand.give_up(f"the plug-in failed: {error!r:.200}")

    return SitsScheduler
