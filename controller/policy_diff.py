"""What two policies differ in, key by key, and which of it can change while the agent runs."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from controller.policy_model import Policy
from controller.policy_rules import shown
from controller.policy_tables import key_name
from controller.policy_text import KeyPath

LIVE: Final = frozenset(
    {"mode", "controller", "discovery", "classes", "engines", "neighbours", "mps"}
)
"""What is made of the other tables (sockets, pins, exporters) is made once, at the start."""

LIVE_KEYS: Final = frozenset({("agent", "operators"), ("agent", "log_level")})
"""Keys of other tables that are asked for each time they matter."""

HELD_AT_START: Final = frozenset({"admin_socket", "adapter"})
"""Of an engine that stays: the leases on it are known by their connection."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key with another value; None is a key that is not there.

    Values are as in the policy's JSON, secrets hidden. `live` says whether the change needs no
    restart.
    """

    path: KeyPath
    old: Any
    new: Any
    live: bool

    @property
    def key(self) -> str:
        """The key as TOML writes it."""
        return key_name(self.path)

    def as_dict(self) -> dict[str, Any]:
        """The change for JSON."""
        return {"key": self.key, "from": self.old, "to": self.new, "live": self.live}

    def __str__(self) -> str:
        """The change in words, such as `engines.chat.slo.gap_ms 120 → 80`."""
        old, new = ("none" if value is None else shown(value) for value in (self.old, self.new))
        return f"{self.key} {old} → {new}"


def policy_changes(old: Policy, new: Policy) -> tuple[KeyChange, ...]:
    """Every key that differs, in the order of `new`, then those that only `old` has."""
    before, after = (
        dict(_leaves(old.as_dict(secrets=True))),
        dict(_leaves(new.as_dict(secrets=True))),
    )
    seen_before, seen_after = dict(_leaves(old.as_dict())), dict(_leaves(new.as_dict()))
    both = {each.name for each in old.engines} & {each.name for each in new.engines}
    return tuple(
        KeyChange(path, seen_before.get(path), seen_after.get(path), _is_live(path, both))
        for path in dict.fromkeys([*after, *before])
        if before.get(path) != after.get(path)
    )


def changed_engines(old: Policy, new: Policy) -> frozenset[str]:
    """The engines that both policies have, and treat differently."""
    before = {engine.name: engine for engine in old.engines}
    return frozenset(
        engine.name
        for engine in new.engines
        if engine.name in before and engine != before[engine.name]
    )


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    else:
        yield path, value


def _is_live(path: KeyPath, both: Collection[str]) -> bool:
    if path[0] == "engines" and path[1] in both and path[2] in HELD_AT_START:
        return False
    return path[0] in LIVE or path in LIVE_KEYS
