"""All checks in order, and a run of them against one engine that is left as it was found."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.conformance import (
    admission,
    figures,
    framing,
    greeting,
    leasing,
    promising,
    restarting,
    setting,
    watching,
)
from controller.conformance.check import BreachError, Check, NotApplicableError, Result, Verdict
from controller.conformance.probe import LEASE_MS, POLL_S, Probe, owners
from controller.conformance.wire import Answer, Wire
from controller.engines.contract import ContractError, Hello, parse_hello

CHECKS: Final[tuple[Check, ...]] = (
    *greeting.CHECKS,
    *framing.CHECKS,
    *setting.CHECKS,
    *leasing.CHECKS,
    *promising.CHECKS,
    *watching.CHECKS,
    *figures.CHECKS,
    *admission.CHECKS,
    *restarting.CHECKS,
)


DISTURBS: Final = "it disturbs others: only with --thorough"
NONSENSE: Final = (TypeError, ValueError, KeyError, AttributeError)
"""What comes of taking apart an answer whose fields have other types than the contract's."""

_NOBODY: Final = Hello("", "", "", 0, {})


class CannotCheckError(Exception):
    """The suite did not begin, or stopped: nobody is there, or another holds the engine."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, of which engine."""

    path: Path
    hello: Hello
    verdicts: tuple[Verdict, ...]
    took_s: float

    def count(self, result: Result) -> int:
        """How many checks ended so."""
        return sum(verdict.result is result for verdict in self.verdicts)

    @property
    def conforms(self) -> bool:
        """Whether no check failed."""
        return self.count(Result.FAIL) == 0

    def as_dict(self) -> dict[str, Any]:
        """As `sitsctl conformance --json` prints it."""
        return {
            "socket": str(self.path),
            "engine": self.hello.engine,
            "version": self.hello.version,
            "instance": self.hello.instance,
            "conforms": self.conforms,
            "passed": self.count(Result.PASS),
            "failed": self.count(Result.FAIL),
            "not_applicable": self.count(Result.NOT_APPLICABLE),
            "took_s": round(self.took_s, 3),
            "checks": [verdict.as_dict() for verdict in self.verdicts],
        }


def run(
    path: Path,
    *,
    only: Sequence[str] = (),
    thorough: bool = False,
    patience: float = 1.0,
    restart: Callable[[], None] | None = None,
    told: Callable[[Verdict], None] | None = None,
) -> Report:
    """Check the engine at socket `path`; `only` names checks, `told` hears of each as it ends.

    `patience` times as long as usual is waited for what an engine may take its time for.
    `CannotCheckError` if it can't be reached, is held by another, or comes to be held by one.
    """
    began = time.monotonic()
    hello = _reach(path, patience)
    verdicts = []
    for check in CHECKS:
        if only and check.name not in only:
            continue
        if check.thorough and not thorough and check.name not in only:
            verdict = Verdict(check, Result.NOT_APPLICABLE, DISTURBS)
        else:
            verdict = _judge(check, Probe(path, hello, patience=patience, restart=restart))
            hello = _leave_as_found(path, hello, patience)
        verdicts.append(verdict)
        if told is not None:
            told(verdict)
    return Report(path, hello, tuple(verdicts), time.monotonic() - began)


def _reach(path: Path, patience: float) -> Hello:
    """The engine's `hello`, once it is sure that nobody else's lease is in the way."""
    probe = Probe(path, _NOBODY, patience=patience)
    try:
        Wire(path).close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CannotCheckError(f"could not reach engine at '{path}': {why}") from None
    try:
        hello = parse_hello(probe.ask("hello").ok().fields)
        state = probe.get()
        _refuse_foreign(path, state["owner"], "its lease is held")
        if state.fields.get("prepared_epoch") is not None:
            raise CannotCheckError(f"could not check engine at '{path}': a change is prepared")
    except BreachError as error:
        raise CannotCheckError(f"could not check engine at '{path}': {error}") from None
    except ContractError as error:
        raise CannotCheckError(f"could not check engine at '{path}': its hello: {error}") from None
    finally:
        probe.close()
    return hello


def _judge(check: Check, probe: Probe) -> Verdict:
    try:
        return Verdict(check, Result.PASS, check.run(probe) or "")
    except NotApplicableError as why:
        return Verdict(check, Result.NOT_APPLICABLE, str(why))
    except BreachError as error:
        return Verdict(check, Result.FAIL, sent=error.sent, expected=error.expected, got=error.got)
    except NONSENSE as error:
        return Verdict(check, Result.FAIL, expected="answers that can be read", got=str(error))
    finally:
        probe.close()


def _leave_as_found(path: Path, hello: Hello, patience: float) -> Hello:
    """Give back what a check took, also on an engine that does not end leases as it should.

    Returns its `hello`, for it may have been restarted.
    """
    probe = Probe(path, hello, patience=patience)
    try:
        probe.hello = hello = parse_hello(probe.ask("hello").ok().fields)
        for owner in owners():
            probe.release(owner)
        state = _at_rest(probe)
        _refuse_foreign(path, state["owner"], "its lease was taken meanwhile")
        if {**state.wanted, **probe.start} != state.wanted:
            probe.set(dict(probe.start))
            probe.release()
    except (BreachError, ContractError, *NONSENSE):
        pass  # the next check will say what is wrong
    finally:
        probe.close()
    return hello


def _at_rest(probe: Probe) -> Answer:
    ends = time.monotonic() + LEASE_MS / 1000 + probe.step_s
    state = probe.get()
    while state["owner"] in owners() and time.monotonic() < ends:
        time.sleep(POLL_S)
        state = probe.get()
    return state


def _refuse_foreign(path: Path, owner: object, what: str) -> None:
    if owner is not None and owner not in owners():
        raise CannotCheckError(f"could not check engine at '{path}': {what} by {owner!r:.200}")
