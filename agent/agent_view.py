"""What answers the admin API: the agent, call by call, as `agent.api` asks it."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from controller.policy_model import Mode

Order = Literal["newest", "worst"]
JsonObject = dict[str, Any]
"""What `json.dumps` takes and writes as an object. NaN and infinities are sent as null."""


class ApiError(Exception):
    """A request that gets no answer: an HTTP status (4xx or 5xx) and why, in lower case."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class PolicyView(Protocol):
    """The policy in force and its changes. `text` is a policy's TOML, `source` what to call it.

    Refused with `ApiError`: 422 what does not hold, 409 what can't be done now.
    """

    def diff(self, text: str, source: str) -> JsonObject:
        """What the policy in `text` would change, key by key."""
        ...

    def apply(self, text: str, source: str, temporary: bool) -> JsonObject:
        """Put a policy in force, and in the agent's file unless it is `temporary`."""
        ...

    def try_out(self, text: str, source: str, seconds: float, engine: str | None) -> JsonObject:
        """Try a policy on an engine, or where it is everybody's on all, beside the old one."""
        ...

    def abort(self, reason: str) -> JsonObject:
        """End the trial under way with the old policy; `reason` may be empty."""
        ...

    def reload(self) -> JsonObject:
        """Put the policy in force that the agent's file says now."""
        ...

    def status(self) -> JsonObject:
        """Which policy is in force, and the trial under way, or the last one."""
        ...


class ChangesView(Protocol):
    """Changes by hand. `ApiError` 409 says what can't be done, 503 that there is no controller."""

    def ask(
        self, engines: Iterable[str], values: Mapping[str, float], lease_s: float, reason: str
    ) -> JsonObject:
        """Have `values` set on all the engines, or on two thirds of them, for `lease_s`."""
        ...

    def give_back(self, engines: Iterable[str], reason: str) -> JsonObject:
        """End the changes on these engines, or if none is named on all."""
        ...


class AgentView(Protocol):
    """The agent as the API shows it: one method for each call, from any thread.

    Every method may raise `ApiError`. An engine's name is one of `engines()`, except in
    `journal`, which also remembers engines that are gone.
    """

    def status(self) -> JsonObject:
        """The whole agent: kernel side, controller, engines, neighbours, loop, problems."""
        ...

    def engines(self) -> JsonObject:
        """`{"engines": [EngineStatus…]}`, every engine of the policy, found or not."""
        ...

    def streams(self, engine: str | None, after: int | None, limit: int) -> JsonObject:
        """Up to `limit` ended streams, oldest first: those next above `after`, or the newest."""
        ...

    def explain(self, engine: str, seconds: float) -> JsonObject:
        """Why `engine` was slow in the last `seconds`."""
        ...

    def stages(self, engine: str, seconds: float, factor: float, floor: float | None) -> JsonObject:
        """The stages of `engine` over the last `seconds`.

        A queue is backpressure when it grew by more than `factor` to more than `floor`; None: each
        stage's own.
        """
        ...

    def neighbours(self) -> JsonObject:
        """`neighbours`, `classes`, `candidates`: who shares the machine and how far it may go."""
        ...

    def gpu(self) -> JsonObject:
        """The GPUs: how they are seen, each with its processes, and `heat`, a map for each.

        A map is `{"device", "from_s", "step_s", "rows": [{"name", "sm_percent": […]}]}`, with
        percents of time, null for not known.
        """
        ...

    def journal(
        self, limit: int, engine: str | None, before: int | None, order: Order
    ) -> JsonObject:
        """`limit` decisions and the newest events.

        Decisions are the newest with id < `before`, newest first, or those with the worst outcome,
        worst first.
        """
        ...

    def policy(self) -> JsonObject:
        """The policy in force, and its `source`."""
        ...

    def doctor(self) -> JsonObject:
        """What the agent's kernel and privileges allow."""
        ...

    def set_mode(self, mode: Mode, reason: str) -> JsonObject:
        """Change the mode until the agent ends; `reason` (may be empty) goes to the journal."""
        ...

    def inject(self, value: float, seconds: float, reason: str) -> JsonObject:
        """Take an upstream's word for backpressure of `value`, 0 to 1, for so long."""
        ...

    @property
    def policies(self) -> PolicyView:
        """What is asked about the policy."""
        ...

    @property
    def changes(self) -> ChangesView:
        """What operators change by hand."""
        ...
