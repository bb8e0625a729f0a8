"""A step of vLLM's for nothing, so that what the plug-in adds to one can be told."""

from typing import Any


class Planned:
    """A scheduler of vLLM's whose step is planned, and taken back, for nothing."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return self.plan

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None: ...
