"""What the README tells a newcomer to do, step by step, with a fault to find; each step is kept.

A real engine under a real trace's load, sitsd beside it, and after a while six processes that burn
the engine's CPU. Then only what an operator has: `sitsctl`, and the page in a browser.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo import calibrate
from demo.rig import Rig, RigError
from demo.sits import Sits, start_sitsd
from demo.stage import Neighbours, Stage
from demo.trace import LengthScale, fit, read_trace
from tests.browser import Browser, Tab, browser

FOUND_WITHIN_S: Final = 60.0
CAUSE: Final = "neighbour_cpu"
UNLOADED: Final = 8
CAPACITY: Final = 24
VERDICT: Final = "because other processes take the CPU the engine wants"
SEEN: Final = f"document.body.innerText.includes('{CAUSE}')"
WIDE, NARROW = (1280, 900), (390, 844)


@dataclass(frozen=True, slots=True)
class Found:
    """How long after the fault began its cause was named, in seconds; and the steps' files."""

    by_explain_s: float
    on_page_s: float
    steps: tuple[Path, ...]


@dataclass(slots=True)
class Walk:
    """The walk under way: what is run and looked at goes to `into`, numbered."""

    into: Path
    sits: Sits
    socket: Path
    tab: Tab
    watched_s: float
    steps: list[Path] = field(default_factory=list)
    by_explain_s: float = 0.0
    on_page_s: float = 0.0

    def steps_of(self, burn: Callable[[], object]) -> Iterator[None]:
        """The script; it is gone on with every so often while the load runs."""
        yield from self._for(self.watched_s)
        self.run("status")
        burn()
        began_s = time.monotonic()
        while not (self.by_explain_s and self.on_page_s):
            yield
            waited_s = time.monotonic() - began_s
            if waited_s > FOUND_WITHIN_S:
                raise RigError(f"the cause was not found in {FOUND_WITHIN_S:g} s")
            if not self.on_page_s and self.tab.evaluate(SEEN):
                self.on_page_s = waited_s
            if not self.by_explain_s and VERDICT in self.said("explain", "--seconds", "5"):
                self.by_explain_s = waited_s
        yield from self._for(self.watched_s)
        self.run("explain", "--seconds", str(max(5, round(self.watched_s / 2))))
        self.run("streams", "--slowest", "-n", "5")
        self.run("top", "--once")
        self.look("page-observe")
        self.run("mode", "control", "--reason", "trying it")
        yield from self._for(self.watched_s)
        self.run("status")
        self.run("journal", "-n", "5")
        self.look("page-control")

    def sitsctl(self, *arguments: str) -> str:
        """What the command prints, as on a pipe of 80 columns."""
        program = Path(sys.executable).with_name("sitsctl")
        done = subprocess.run(
            [program, *arguments],
            env={"PATH": os.environ["PATH"], "SITS_SOCKET": str(self.socket)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    def said(self, *arguments: str) -> str:
        """The same, wherever its lines were broken."""
        return " ".join(self.sitsctl(*arguments).split())

    def run(self, *arguments: str) -> None:
        """A step: the command and what it printed."""
        typed = " ".join(f'"{each}"' if " " in each else each for each in arguments)
        self._keep(arguments[0], ".txt").write_text(
            f"$ sitsctl {typed}\n{self.sitsctl(*arguments)}"
        )

    def look(self, name: str) -> None:
        """A step: the page, light and dark, wide and narrow."""
        for theme in ("light", "dark"):
            for width, height in (WIDE, NARROW):
                self.tab.looks(theme)
                self.tab.size(width, height)
                self.tab.evaluate("new Promise((done) => setTimeout(done, 400))")
                shape = "wide" if (width, height) == WIDE else "narrow"
                self.tab.screenshot(self._keep(f"{name}-{theme}-{shape}", ".png"))
        self.tab.looks("light")
        self.tab.size(*WIDE)

    def _keep(self, name: str, suffix: str) -> Path:
        path = self.into / f"{len(self.steps) + 1:02}-{name}{suffix}"
        self.steps.append(path)
        return path

    @staticmethod
    def _for(seconds: float) -> Iterator[None]:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            yield


def walk(into: Path, watched_s: float) -> Found:
    """Walk; `watched_s` is how long each part is left alone to be seen. `RigError` if it fails."""
    into.mkdir(parents=True, exist_ok=True)
    with Rig("sits-walk") as rig, browser() as chrome:
        stage = Stage(rig)
        stage.start_engine()
        trace, lengths = read_trace(), LengthScale()
        alone = stage.send("unloaded", calibrate.unloaded_plan(trace, lengths, UNLOADED))
        together = stage.send("capacity", calibrate.capacity_plan(trace, lengths, CAPACITY))
        capacity = calibrate.capacity_rps(together.records)
        slo = calibrate.slo_of(calibrate.unloaded_figures(alone.records))
        sits = start_sitsd(rig, stage, slo)
        walked = Walk(into, sits, rig.run_dir / "admin.sock", _opened(chrome, sits), watched_s)
        window_s = 3 * watched_s + FOUND_WITHIN_S
        load = fit(trace, lengths, capacity * calibrate.LOAD_SHARE, window_s)
        neighbours: list[Neighbours] = []
        script = walked.steps_of(lambda: neighbours.append(Neighbours(rig)))
        _play(stage, load.requests, script)
        for each in neighbours:
            each.stop()
        if walked.tab.complaints:
            raise RigError(f"the page complained: {walked.tab.complaints}")
    return Found(walked.by_explain_s, walked.on_page_s, tuple(walked.steps))


class _OverError(Exception):
    """The script has ended before the load has."""


def _play(stage: Stage, requests: Any, script: Iterator[None]) -> None:
    """Send the requests for as long as the script goes on."""

    def go_on(_: float) -> None:
        try:
            next(script)
        except StopIteration:
            raise _OverError from None

    try:
        stage.send("load", requests, go_on)
    except _OverError:
        return
    raise RigError("the load ended before the walk did")


def _opened(chrome: Browser, sits: Sits) -> Tab:
    address = sits.client.policy()["agent"]["metrics_address"]
    tab = chrome.open(f"http://{address}/")
    tab.becomes("document.querySelectorAll('.engine h2').length > 0")
    return tab
