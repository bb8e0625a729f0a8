"""The page in a real browser, with a real sitsd, engine, load and neighbours behind it."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, Tab, browser
from tests.unit.docs.schemas import problems

from .conftest import Node
from .groups import burning
from .rig import Site
from .traffic import load
from .waiting import becomes

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

SHOTS = os.environ.get("SITS_SCREENSHOTS")
"""A folder for screenshots, for people to look at."""

WATCHED_S = 45.0 if SHOTS else 1.0
"""How long there is something to see, where somebody looks."""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as made:
        yield made


def shoot(tab: Tab, name: str) -> None:
    if SHOTS:
        tab.evaluate("new Promise((done) => setTimeout(done, 400))")
        tab.screenshot(Path(SHOTS) / f"{name}.png")


def test_a_neighbour_that_takes_the_cpu_is_seen_within_a_minute_and_so_is_what_is_done(
    node: Node, site: Site, chrome: Browser
) -> None:
    site.write(node.targets(ttft_ms=400, gap_ms=30))
    with site.sitsd() as sitsd:
        sitsd.following()
        with load(node.engine, clients=3, max_tokens=48, pause_s=0.2) as traffic:
            traffic.grows_to(20)
            tab = chrome.open(site.url)
            tab.becomes("document.querySelector('.engine h2')?.textContent === 'chat'")
            time.sleep(WATCHED_S)
            with burning(*node.neighbours):
                began_s = time.monotonic()
                tab.becomes("document.body.innerText.includes('neighbour_cpu')")
                assert time.monotonic() - began_s < 60
                time.sleep(WATCHED_S / 2)
                sitsd.api.set_mode("control", "a test")
                tab.becomes("document.querySelectorAll('.decisions li').length > 0")
                time.sleep(WATCHED_S)
                shoot(tab, "light")
                tab.looks("dark")
                shoot(tab, "dark")
                tab.size(390, 844, 2)
                shoot(tab, "narrow")
        assert tab.complaints == []


def test_what_a_real_sitsd_answers_holds_by_its_schemas(node: Node, site: Site) -> None:
    site.write(node.targets(ttft_ms=400, gap_ms=30), mode="control")
    with site.sitsd() as sitsd:
        sitsd.following()
        ask: dict[str, Callable[[], object]] = {
            "status": sitsd.api.status,
            "engines": sitsd.api.engines,
            "neighbours": sitsd.api.neighbours,
            "gpu": sitsd.api.gpu,
            "policy": sitsd.api.policy,
            "policy-status": sitsd.api.policy_status,
            "streams": sitsd.api.streams,
            "explain": sitsd.api.explain,
            "stages": sitsd.api.stages,
            "journal": sitsd.api.journal,
            "doctor": sitsd.api.doctor,
        }
        before = {name: answer() for name, answer in ask.items()}
        with load(node.engine, clients=2, max_tokens=24) as traffic, burning(*node.neighbours):
            traffic.grows_to(10)
            becomes(lambda: sitsd.api.streams()["streams"])
            becomes(lambda: sitsd.api.journal()["decisions"])
            during = {name: answer() for name, answer in ask.items()}
        after = {name: answer() for name, answer in ask.items()}
    for answers in (before, during, after):
        assert {name: problems(name, answer) for name, answer in answers.items()} == {
            name: [] for name in answers
        }
