"""The check of an engine that is restarted while a lease stands."""

import time
from contextlib import suppress
from typing import Final

from controller.conformance.check import BreachError, NotApplicableError, check
from controller.conformance.probe import POLL_S, Probe
from controller.conformance.wire import Wire
from controller.engines.contract import ContractError, Hello, parse_hello

RESTART_S: Final = 180.0
"""A real engine loads a model."""


@check("rules", "Epochs begin again with `instance`.")
def restart(probe: Probe) -> str:
    """A restarted engine has another instance, no lease, start values, and epochs from 1."""
    if probe.restart is None:
        raise NotApplicableError("there is no --restart-command")
    probe.set(probe.small, epoch=probe.next_epoch() + 5, lease_ms=probe.hello.max_lease_ms).ok()
    began = time.monotonic()
    probe.restart()
    hello = _another(probe, began + RESTART_S)
    took_s = time.monotonic() - began
    again = Probe(probe.path, hello, patience=probe.patience)
    try:
        again.settled().shows(owner=None, epoch=0, applied_epoch=0).wants(again.start)
        again.set({}, epoch=1).ok().shows(epoch=1, owner=again.owner)
        again.release().ok()
        if hello.page is not None:
            again.page()
    finally:
        again.close()
    return f"back after {took_s:.1f} s"


def _another(probe: Probe, until_s: float) -> Hello:
    """The `hello` of the next instance."""
    while time.monotonic() < until_s:
        with suppress(OSError, BreachError, ContractError):
            wire = Wire(probe.path)
            try:
                hello = parse_hello(wire.ask("hello").ok().fields)
            finally:
                wire.close()
            if hello.instance != probe.hello.instance:
                return hello
        time.sleep(POLL_S)
    raise BreachError(
        f"another instance than {probe.hello.instance} within {RESTART_S:g} s",
        "none",
        "(the restart command)",
    )


CHECKS: Final = (restart,)
