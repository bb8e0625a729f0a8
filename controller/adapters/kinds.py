"""The kinds of adapters: what each is told of its engine, and how its driver is made."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol

from controller.adapters.driver import Driver


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of adapter.

    `needs` and `takes` are the settings it must and may have; `module` has the function `connect`,
    which makes its driver of them (and is imported only then).
    """

    module: str
    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()


KINDS: Final[Mapping[str, Kind]] = {
    "haproxy": Kind("controller.adapters.haproxy", ("address", "backend"), ("server",)),
    "triton": Kind("controller.adapters.triton", ("address", "model"), ("metrics",)),
    "sglang": Kind("controller.adapters.sglang", ("address",), ("key_file", "admin_key_file")),
}


class Connect(Protocol):
    """What a kind's module has under the name `connect`."""

    def __call__(self, settings: Mapping[str, str]) -> Driver:
        """A driver for the engine that `settings` name; nothing is sent to it yet."""


def connect(kind: str, settings: Mapping[str, str]) -> Driver:
    """The driver of `kind`; `ValueError` if the settings are not right for it."""
    problems = "; ".join(setting_problems(kind, settings))
    if problems:
        raise ValueError(problems)
    module: Any = import_module(KINDS[kind].module)
    make: Connect = module.connect
    return make(settings)


def setting_problems(kind: str, settings: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with which settings there are."""
    if kind not in KINDS:
        yield f"kind must be one of {', '.join(KINDS)}, not {kind!r:.40}"
        return
    for name in KINDS[kind].needs:
        if name not in settings:
            yield f"an adapter of kind {kind} needs {name}"
    for name in settings:
        if name not in {*KINDS[kind].needs, *KINDS[kind].takes}:
            yield f"an adapter of kind {kind} takes no {name}"
