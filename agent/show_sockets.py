"""An engine's admin sockets, as text for people: whose the knobs are, and for how long."""

from rich.console import RenderableType
from rich.text import Text

from agent.layout import also, table_of
from agent.words import UNKNOWN, Json, duration, value


def sockets_of(item: Json) -> list[tuple[str, RenderableType]]:
    """Facts of an engine: its socket's lease and last write, or a table where there are several."""
    sockets = item["admin_sockets"]
    if not sockets:
        return []
    hands = {each["by_hand"]["id"]: each["by_hand"] for each in sockets if each["by_hand"]}
    facts: list[tuple[str, RenderableType]] = [("by hand", _hand(hand)) for hand in hands.values()]
    if len(sockets) == 1:
        facts.append(("lease", f"{_lease(sockets[0])}; {_pending(sockets[0])}"))
        return facts
    rows = table_of("RANK", "STATE", "KNOBS", "LEASE")
    for each in sockets:
        moved = ", ".join(
            f"{name} {value(knob['value'])}"
            for name, knob in each["knobs"].items()
            if knob["value"] != knob["start"]
        )
        state = f"{each['state']}{also(each['detail'])}" if each["state"] != "connected" else ""
        rows.add_row(
            Text(each["key"].partition("/")[2] or each["key"]),
            Text(state or each["state"]),
            Text(moved or "as started"),
            Text(_lease(each)),
        )
    return [*facts, ("ranks", rows)]


def _lease(socket: Json) -> str:
    lease = socket["lease"]
    if socket["state"] in {"unreachable", "refused"}:
        return f"{UNKNOWN}; what was held there went back by itself"
    if lease is None:
        return "none: as the engine was started"
    whose = "ours" if lease["ours"] else f"held by {lease['owner']}"
    return f"{whose}, {lease['left_s']:.1f} s left"


def _pending(socket: Json) -> str:
    pending = ", ".join(f"{name} {value(number)}" for name, number in socket["pending"].items())
    last = f"last write {socket['last_ack']}" if socket["last_ack"] else "nothing written yet"
    return f"{last}; pending {pending}" if pending else last


def _hand(hand: Json) -> str:
    wanted = ", ".join(f"{name} {value(number)}" for name, number in hand["values"].items())
    left = f"{duration(round(hand['left_s']))} left"
    return f"{wanted} ({hand['state']}, {left}): {hand['reason']}"
