"""What the bench runs, by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from demo.trace import Load

from .bench import Bench, Spec
from .compare import compare
from .contenders import DEFAULT, OBSERVE, SITS
from .extent import Extent
from .figures import figures
from .loads import (
    BURSTY_SHARE,
    CODE,
    CONVERSATION,
    STEADY_SHARE,
    STEP_FACTOR,
    STEP_SHARE,
    step,
    stretch,
)
from .material import material
from .restart import restart
from .summary import summary

SLACK_SHARE: Final = 0.25
SLACK_BUDGET: Final = 256
"""Tokens of a step that the engine is started with for what neighbours do to the code trace: with
this load and this start value nearly every request is good without them."""

SLOW_SHARE: Final = 0.4
SLOW_READERS: Final = 4

Scenario = Callable[[Bench, Extent], dict[str, Any]]


def bursty(bench: Bench, extent: Extent) -> dict[str, Any]:
    """The code trace: bursts above the capacity, the mean below."""
    code = material(bench, extent, CODE)

    def load(seed: int, window_s: float) -> Load:
        return stretch(code.requests, seed, code.rate(BURSTY_SHARE), window_s)

    return compare(bench, extent, "bursty", code, BURSTY_SHARE, load)


def steady(bench: Bench, extent: Extent) -> dict[str, Any]:
    """The conversation trace, below capacity."""
    talk = material(bench, extent, CONVERSATION)

    def load(seed: int, window_s: float) -> Load:
        return stretch(talk.requests, seed, talk.rate(STEADY_SHARE), window_s)

    return compare(bench, extent, "steady", talk, STEADY_SHARE, load)


def stepped(bench: Bench, extent: Extent) -> dict[str, Any]:
    """A load that doubles for the middle third."""
    talk = material(bench, extent, CONVERSATION)

    def load(seed: int, window_s: float) -> Load:
        return step(talk.requests, seed, talk.rate(STEP_SHARE), window_s)

    return compare(bench, extent, "step", talk, STEP_SHARE * (2 + STEP_FACTOR) / 3, load)


def neighbour(bench: Bench, extent: Extent) -> dict[str, Any]:
    """The code trace with slack: alone, and beside six neighbours, watched and controlled."""
    code = material(bench, extent, CODE)
    options = (f"{bench.engine.budget_option}={SLACK_BUDGET}",)
    found: dict[str, Any] = {
        **code.as_dict(),
        "share_of_capacity": SLACK_SHARE,
        "engine_options": list(options),
    }
    for name, contender, disturbed in (
        ("alone", OBSERVE, False),
        ("observe", OBSERVE, True),
        ("sits", SITS, True),
    ):
        runs = []
        for seed in extent.seeds:
            load = stretch(code.requests, seed, code.rate(SLACK_SHARE), extent.window_s)
            spec = Spec(contender, code.plan(load), code.slo, disturbed, options=options)
            runs.append(bench.run(f"neighbour, seed {seed}, {name}", spec))
        found[name] = summary(runs)
    return found


def slow_readers(bench: Bench, extent: Extent) -> dict[str, Any]:
    """A steady load: alone, beside clients that read slowly, and beside such as read at once.

    The figures are those of the others. Both kinds ask for the same, which is more to compute than
    without them: what slow reading does is the difference between the two.
    """
    talk = material(bench, extent, CONVERSATION)
    found: dict[str, Any] = {
        **talk.as_dict(),
        "share_of_capacity": SLOW_SHARE,
        "slow_readers": SLOW_READERS,
    }
    for name, contender, readers, at_once in (
        ("observe_without", OBSERVE, 0, False),
        ("observe_at_once", OBSERVE, SLOW_READERS, True),
        ("observe", OBSERVE, SLOW_READERS, False),
        ("sits_without", SITS, 0, False),
        ("sits_at_once", SITS, SLOW_READERS, True),
        ("sits", SITS, SLOW_READERS, False),
    ):
        runs = []
        for seed in extent.seeds:
            load = stretch(talk.requests, seed, talk.rate(SLOW_SHARE), extent.window_s)
            spec = Spec(
                contender, talk.plan(load), talk.slo, slow_readers=readers, read_at_once=at_once
            )
            runs.append(bench.run(f"slow readers, seed {seed}, {name}", spec))
        found[name] = summary(runs)
        found[name]["slow_failed"] = [text for run in runs for text in run.seen["slow_failed"]]
    found["attainment_ratio_vs_at_once"] = (
        found["sits"]["attainment"] / found["sits_at_once"]["attainment"]
        if found["sits_at_once"]["attainment"]
        else None
    )
    return found


def overload(bench: Bench, extent: Extent) -> dict[str, Any]:
    """The conversation trace at rising shares of the capacity."""
    talk = material(bench, extent, CONVERSATION)
    found: dict[str, Any] = {**talk.as_dict(), "seeds": list(extent.seeds)}
    # the engine alone collapses whatever the seed
    for contender, seeds in ((DEFAULT, extent.seeds[:1]), (SITS, extent.seeds)):
        levels = {}
        for share in extent.overload_shares:
            runs = []
            for seed in seeds:
                load = stretch(talk.requests, seed, talk.rate(share), extent.window_s)
                spec = Spec(contender, talk.plan(load), talk.slo)
                name = f"overload, seed {seed}, {share:g} × capacity, {contender.name}"
                runs.append(bench.run(name, spec))
            levels[share] = (summary(runs), figures(runs).goodput_rps)
        peak = max(rps for _, rps in levels.values())
        last = levels[max(levels)][1]
        found[contender.name] = {
            "levels": {f"{share:g}": entry for share, (entry, _) in levels.items()},
            "peak_goodput_rps": peak,
            "goodput_share_of_peak": last / peak if peak else None,
        }
    return found


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "bursty": bursty,
    "steady": steady,
    "step": stepped,
    "neighbour": neighbour,
    "slow_readers": slow_readers,
    "overload": overload,
    "restart": restart,
}
