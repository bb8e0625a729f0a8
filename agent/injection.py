"""What an operator told the agent that it can't see itself, and for how long that counts."""

from dataclasses import dataclass

from agent.agent_view import JsonObject


@dataclass(frozen=True, slots=True)
class Injection:
    """A signal from outside; `ends_s` is on the monotonic clock.

    It lives in the controller that was told of it, and ends with that one.
    """

    what: str
    value: float
    reason: str
    ends_s: float
    controller_pid: int | None

    def answer(self, now_s: float, controller_pid: int | None) -> JsonObject | None:
        """What the status says of it; null when it no longer counts."""
        left_s = self.ends_s - now_s
        if left_s <= 0 or not self.value or controller_pid != self.controller_pid:
            return None
        return {"what": self.what, "value": self.value, "left_s": left_s, "reason": self.reason}
