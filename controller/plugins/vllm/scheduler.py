"""What vLLM is given for its scheduler: its own, with our hand at the top and the end of a step.

`Scheduler` is one name for both flavours. It asks vLLM's own configuration which class it would
have taken without us (the asynchronous one, mostly) and extends that; to extend the other would
cost up to 80% of latency, or outputs.

vLLM serves whatever happens here: what fails at the start or in a step is told once in its log,
and from then on this is the class it extends and nothing else.
"""

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from controller.plugins.vllm.attach import attach
from controller.plugins.vllm.hand import Hand

log = logging.getLogger("vllm.sits")

_SCHEDULE: Final = (("self",), ("self", "throttle_prefills"))
"""Its arguments before prefills could be throttled, and since."""

_UPDATE: Final = ("self", "scheduler_output", "model_runner_output")


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
    """`base`, one of vLLM's schedulers, with our hand in it.

    Only `base` itself, and a warning, where vLLM asks for a step with arguments that we don't know.
    """
    # looked up once, and with the arguments they have: every step pays for these two
    update_from_output = base.update_from_output
    if _arguments(update_from_output) != _UPDATE or _arguments(base.schedule) not in _SCHEDULE:
        log.warning("sits does not know this vLLM's steps: vLLM serves as it was started")
        return base
    schedule = _planning(base)

    class SitsScheduler(base):  # type: ignore[misc]  # vLLM's class is known only where it runs
        """vLLM's scheduler; what it is asked, it does as without us."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._sits: Hand | None = None
            super().__init__(*args, **kwargs)
            self._sits = attach(self)

        def schedule(self, throttle_prefills: bool = False) -> Any:
            hand = self._sits
            if hand is None:
                return schedule(self, throttle_prefills)
            leased = hand.leased
            leased.under_way = True  # first: see there
            if leased.changed or hand.looks:
                try:
                    hand.begin_step()
                except Exception as error:
                    self._sits_failed(error)
            hand.last_plan = plan = schedule(self, throttle_prefills)
            if plan.scheduled_new_reqs or hand.accounts:
                try:
                    hand.scheduled(plan)
                except Exception as error:
                    self._sits_failed(error)
            return plan

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            hand = self._sits
            if hand is None:
                return update_from_output(self, scheduler_output, model_runner_output)
            tokens = scheduler_output.total_num_scheduled_tokens
            hand.cached_tokens = cached = hand.cached_tokens + tokens
            outputs = update_from_output(self, scheduler_output, model_runner_output)
            try:
                hand.end_step(scheduler_output, model_runner_output, cached)
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


def _planning(base: Any) -> Callable[[Any, bool], Any]:
    """How `base` has a step planned."""
    plan: Callable[..., Any] = base.schedule
    return plan if len(_arguments(plan)) > 1 else lambda self, _: plan(self)


def _arguments(method: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)
