"""The kinds of adapters: what each is told of its engine, and how its driver is made."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Protocol

from controller.adapters.driver import Driver
from controller.policy_rules import (
    Rule,
    address,
    directory,
    shown,
    socket_or_port,
    socket_path,
    text,
    url,
    word,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of adapter.

    `needs` and `takes` are the settings it must and may have, with what each may be. `module` has
    the function `connect`, which makes its driver of them; it is imported only then.
    """

    module: str
    needs: Mapping[str, Rule]
    takes: Mapping[str, Rule] = field(default_factory=dict)


KINDS: Final[Mapping[str, Kind]] = {
    "haproxy": Kind(
        "controller.adapters.haproxy",
        needs={"address": socket_path(), "backend": word(".:-")},
        takes={"server": word(".:-"), "gate": word(".")},
    ),
    "triton": Kind(
        "controller.adapters.triton",
        needs={"address": socket_or_port(), "model": text()},
        takes={"metrics": url()},
    ),
    "sglang": Kind(
        "controller.adapters.sglang",
        needs={"address": address()},
        takes={"key_file": directory(), "admin_key_file": directory()},
    ),
}


class Connect(Protocol):
    """What a kind's module has under the name `connect`."""

    def __call__(self, settings: Mapping[str, str]) -> Driver:
        """A driver for the engine that `settings` name; nothing is sent to it yet."""


def connect(kind: str, settings: Mapping[str, str]) -> Driver:
    """The driver of `kind`; `ValueError` if the settings are not right for it."""
    problems = "; ".join(f"{name}: {what}" for name, what in setting_problems(kind, settings))
    if problems:
        raise ValueError(problems)
    module: Any = import_module(KINDS[kind].module)
    make: Connect = module.connect
    return make(settings)


def setting_problems(kind: str, settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Which settings are wrong, and what is wrong with each."""
    if kind not in KINDS:
        yield "kind", f"must be one of {', '.join(KINDS)}, not {shown(kind)}"
        return
    rules = {**KINDS[kind].needs, **KINDS[kind].takes}
    for name in KINDS[kind].needs:
        if name not in settings:
            yield name, f"an adapter of kind {kind} needs it"
    for name, value in settings.items():
        if name not in rules:
            yield name, f"an adapter of kind {kind} has no such setting"
            continue
        try:
            rules[name].read(value)
        except ValueError as error:
            why = f": {error}" if str(error) else ""
            yield name, f"must be {rules[name].allowed}, not {shown(value)}{why}"
