"""The page in headless Chromium: what is seen, by eyes, keys and screen readers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from agent.http import HttpServer
from tests.browser import Browser, Tab, Theme, browser

from .shown import HOSTILE, ShownView, columns_of, served

pytestmark = pytest.mark.slow

SHOTS: Final = os.environ.get("SITS_SCREENSHOTS")
"""A folder for screenshots, for people to look at."""

GPU: Final = {
    "device": "GPU 0: H200",
    "from_s": 0,
    "step_s": 5,
    "rows": [
        {"name": "vllm", "sm_percent": [40 + n % 50 for n in range(60)]},
        {"name": "training", "sm_percent": [None] * 30 + [90] * 30},
    ],
}


CHECKS: Final = Path(__file__).with_name("checks.js").read_text()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def view() -> ShownView:
    return ShownView()


@contextmanager
def shown(
    chrome: Browser, view: ShownView, theme: Theme = "light", width: int = 1280, gpus: Any = tuple
) -> Iterator[Tab]:
    """The page with what `view` says; at the end it must not have complained of anything."""
    with served(view, columns_of(*(e["name"] for e in view.state["engines"])), gpus) as server:
        tab = chrome.open(url(server), theme, width)
        tab.becomes("document.querySelectorAll('.engine').length > 0")
        tab.becomes("document.querySelector('.axis').hasAttribute('aria-valuetext')")
        yield tab
        assert tab.complaints == []


def url(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}/"


def check(tab: Tab, name: str) -> Any:
    """What a function of checks.js finds."""
    return tab.evaluate(f"(() => {{ {CHECKS}; return {name}(); }})()")


def shoot(tab: Tab, name: str) -> None:
    if SHOTS:
        tab.evaluate("new Promise((done) => setTimeout(done, 300))")
        tab.screenshot(Path(SHOTS) / f"{name}.png")


def colour_at(tab: Tab, canvas: int, x: float, y: float) -> list[int]:
    """The colour of a point of the nth canvas, its place as shares of what is plotted."""
    found = tab.evaluate(
        f"""(() => {{
          const canvas = document.querySelectorAll(".charts canvas")[{canvas}];
          const left = 140 * devicePixelRatio;
          const at = left + (canvas.width - left) * {x};
          return [...canvas.getContext("2d").getImageData(at, canvas.height * {y}, 1, 1).data];
        }})()"""
    )
    return list(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast(chrome: Browser, view: ShownView, theme: Theme) -> None:
    view.state["problems"] = ["the controller does not run"]
    with shown(chrome, view, theme, gpus=lambda: [GPU]) as tab:
        tab.evaluate("document.querySelector('details').open = true")
        tab.becomes("document.querySelectorAll('details tbody tr').length > 0")
        shoot(tab, f"made-{theme}")
        assert check(tab, "contrasts") == []


def test_everything_has_a_name_and_a_sound_structure(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view, gpus=lambda: [GPU]) as tab:
        tab.evaluate("document.querySelector('details').open = true")
        tab.becomes("document.querySelectorAll('details tbody tr').length > 0")
        assert check(tab, "nameless") == []
        assert check(tab, "structure") == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_makes_the_page_wider_than_the_window(
    chrome: Browser, view: ShownView, width: int
) -> None:
    view.state["neighbours"][0]["name"] = "a-long-name-" * 10
    with shown(chrome, view, width=width, gpus=lambda: [GPU]) as tab:
        shoot(tab, f"made-{width}")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_names_from_processes_are_shown_and_never_run(chrome: Browser, view: ShownView) -> None:
    view.state["neighbours"][0]["name"] = HOSTILE
    view.state["engines"][0]["name"] = HOSTILE
    view.state["engines"][0]["detail"] = HOSTILE
    view.state["problems"] = [HOSTILE]
    for decision in view.decisions:
        decision["engine"] = decision["reason"] = HOSTILE
        decision["action"][0]["target"] = HOSTILE
    gpu = GPU | {"device": HOSTILE, "rows": [{"name": HOSTILE, "sm_percent": [1]}]}
    with shown(chrome, view, gpus=lambda: [gpu]) as tab:
        assert tab.evaluate("document.querySelectorAll('img, [onerror]').length") == 0
        assert tab.evaluate("document.querySelector('.engine h2').textContent") == HOSTILE
        assert tab.evaluate("document.querySelector('#problems').textContent") == HOSTILE
        assert tab.evaluate(f"document.body.innerText.split({HOSTILE!r}).length") > 6


def test_the_time_of_a_trouble_stands_out_in_the_heat_map(chrome: Browser, view: ShownView) -> None:
    view.state["engines"][0]["slo"] = {"ttft_ms": 800.0, "gap_ms": 120.0, "attainment": 0.99}
    with shown(chrome, view) as tab:
        # columns 60 to 80 of 150, and the last 120 are shown
        late, calm = (
            [colour_at(tab, 1, (column + 0.3) / 120, y / 40) for y in range(40)]
            for column in (40, 100)
        )
        assert any(warm(colour) for colour in late)
        assert not any(warm(colour) for colour in calm)


def warm(colour: list[int]) -> bool:
    red, _, blue, _ = colour
    return red > blue + 40


def test_the_moment_can_be_moved_by_keys_and_is_told(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view) as tab:
        tab.evaluate("document.querySelector('.axis').focus()")
        tab.press("Home", 36)
        first = tab.evaluate("document.querySelector('.axis').getAttribute('aria-valuetext')")
        for _ in range(40):
            tab.press("ArrowRight", 39)
        moved = tab.evaluate("document.querySelector('.axis').getAttribute('aria-valuetext')")
        assert "neighbour_cpu" not in first
        assert "neighbour_cpu 60%" in moved
        assert "max_running 8" in moved
        assert tab.evaluate("document.querySelector('.axis').getAttribute('aria-valuenow')") == "40"
        assert tab.evaluate("document.querySelector('.readout').textContent") == moved
        tab.press("Escape", 27)
        assert tab.evaluate("document.querySelector('.cross').hidden")


def test_keys_reach_everything_in_the_order_it_is_read(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view) as tab:
        reached = []
        for _ in range(9):
            tab.press("Tab", 9)
            reached.append(
                tab.evaluate(
                    "document.activeElement.id || document.activeElement.className"
                    " || document.activeElement.textContent"
                )
            )
        assert reached == [
            "skip", "range", "pause", "theme", "axis", "As a table", "decisions", "/metrics",
            "/healthz",
        ]  # fmt: skip


def test_the_table_says_what_the_heat_maps_show(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view) as tab:
        tab.evaluate("document.querySelector('details').open = true")
        rows = tab.becomes(
            "[...document.querySelectorAll('details tbody tr')].map((row) => row.textContent)"
            ".filter((text) => text.includes('neighbour_cpu'))"
        )
        assert 3 <= len(rows) <= 5
        assert all(" s" in row for row in rows)  # TTFTs of seconds then, and only then
        assert tab.evaluate("document.querySelectorAll('details tbody tr').length") == 20


def test_a_theme_can_be_chosen_against_the_systems(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view, "dark") as tab:
        background = "getComputedStyle(document.body).backgroundColor"
        dark = tab.evaluate(background)
        tab.evaluate(
            "(() => { const theme = document.getElementById('theme'); theme.value = 'light';"
            " theme.dispatchEvent(new Event('change')); })()"
        )
        light = tab.evaluate(background)
        assert sum(map(int, light[4:-1].split(","))) > 3 * sum(map(int, dark[4:-1].split(",")))
        tab.evaluate("localStorage.clear()")


def test_what_was_injected_is_in_the_head_while_it_lasts(chrome: Browser, view: ShownView) -> None:
    view.state["injected"] = {
        "what": "backpressure",
        "value": 0.8,
        "left_s": 61.2,
        "reason": "the gateway is full",
    }
    with shown(chrome, view) as tab:
        facts = "document.getElementById('facts').textContent"
        tab.becomes(f"{facts}.includes('backpressure 0.8, 1 min more: the gateway is full')")
        view.state["injected"] = None
        tab.becomes(f"!{facts}.includes('injected')")


def test_a_new_cause_is_spoken(chrome: Browser, view: ShownView) -> None:
    engine = view.state["engines"][0]
    engine |= {"cause": "none", "cause_meaning": "nothing is wrong"}
    with shown(chrome, view) as tab:
        assert tab.evaluate("document.getElementById('spoken').textContent") == ""
        engine |= {"cause": "memory", "cause_meaning": "its tasks wait for memory"}
        said = tab.becomes("document.getElementById('spoken').textContent")
        assert said == "chat: memory, its tasks wait for memory"
        assert tab.evaluate("document.getElementById('spoken').getAttribute('role')") == "status"


def test_pause_stops_the_page_and_says_so(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view) as tab:
        tab.evaluate("document.getElementById('pause').click()")
        assert (
            tab.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        )
        tab.evaluate("new Promise((done) => setTimeout(done, 2500))")
        asked = len(view.asked)
        tab.evaluate("new Promise((done) => setTimeout(done, 3000))")
        assert len(view.asked) == asked


def test_an_agent_that_is_gone_is_told_and_the_last_figures_stay(
    chrome: Browser, view: ShownView
) -> None:
    with served(view, columns_of("chat")) as server:
        tab = chrome.open(url(server))
        tab.becomes("document.querySelectorAll('.engine').length > 0")
    said = tab.becomes("document.getElementById('problems').textContent")
    assert "sitsd does not answer since" in said
    assert tab.evaluate("document.querySelectorAll('.engine').length") == 1


def test_without_gpus_or_engines_nothing_pretends(chrome: Browser, view: ShownView) -> None:
    view.state["engines"] = []
    with served(view, columns_of()) as server:
        tab = chrome.open(url(server))
        tab.becomes("document.body.innerText.includes('The policy names no engine.')")
        assert tab.evaluate("document.getElementById('gpus').checkVisibility()") is False


def test_a_gpus_processes_have_their_rows(chrome: Browser, view: ShownView) -> None:
    with shown(chrome, view, gpus=lambda: [GPU]) as tab:
        assert tab.evaluate("document.getElementById('gpus').checkVisibility()")
        told = tab.evaluate("document.querySelector('#gpus canvas').getAttribute('aria-label')")
        assert told.startswith("GPU 0: H200")
        assert "training 90%" in told
