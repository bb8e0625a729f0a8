"""An engine's memory in a line."""

from agent.words import Json, figure


def memory_text(memory: Json) -> str:
    """What is left under the tightest limit, whether it runs short, what is held for that."""
    if memory["limit_bytes"] is None:
        return "no limit known"
    where = f"in cgroup {memory['bound']}" if memory["bound"] else "of the machine"
    text = f"{_mib(memory['left_bytes'])} of {_mib(memory['limit_bytes'])} MiB {where} left"
    if memory["per_request_bytes"]:
        text += f", {_mib(memory['per_request_bytes'])} a request"
    if memory["short"]:
        text += f"; runs short: {memory['short']}"
    if memory["running_cap"] is not None:
        text += f"; at most {figure(memory['running_cap'])} may run"
    held = ", ".join(f"{name} to {_mib(high)} MiB" for name, high in memory["held"].items())
    return text + (f"; holds {held}" if held else "")


def _mib(count: float) -> str:
    return f"{count / (1 << 20):.0f}"
