"""The live view: one frame at any size, and the real thing on a real terminal."""

import codecs
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from agent.top import POINTS, History, frame
from tests.unit.agent.recorded import (
    DECISIONS,
    ENGINE,
    STATUS,
    UNSEEN,
    RecordedView,
    served,
)

QUIT_S = 20
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""The sequences that enter and leave the alternate screen."""
SHOW_CURSOR = "\x1b[?25h"


def drawn(
    status: dict[str, Any],
    history: History | None = None,
    width: int = 80,
    height: int | None = None,
    notice: str = "",
) -> list[str]:
    """The lines of a frame, without colour."""
    if history is None:
        history = History()
        history.add(status, DECISIONS)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    options = console.options.update(width=width, height=height)
    segments = console.render_lines(frame(status, history, notice), options, pad=False)
    return ["".join(segment.text for segment in line) for line in segments]


def with_engines(count: int, **changed: Any) -> dict[str, Any]:
    engines = [ENGINE | {"name": f"engine-{number}"} | changed for number in range(count)]
    return STATUS | {"engines": engines}


def with_p99(gap_ms: float | None, ttft_ms: float | None = 100.0) -> dict[str, Any]:
    return STATUS | {
        "engines": [
            ENGINE | {"gap_ms": {"p50": 1.0, "p99": gap_ms}, "ttft_ms": {"p50": 1, "p99": ttft_ms}}
        ]
    }


def test_a_frame_says_what_matters() -> None:
    text = "\n".join(drawn(STATUS))
    for fact in (
        "control", "pid 4121", "loop p99 17.6 ms", "no problems", "97.1%", "212/742 ≤ 800",
        "21/183 > 120", "12+3", "0.42", "neighbour_cpu", "max_batched_tokens 2048 → 412",
        "CPU weight 100 → 1024", "1.52 of 1.50 cores", "applied 212 µs",
    ):  # fmt: skip
        assert fact in text


def test_a_wide_frame_shows_decisions_in_full() -> None:
    assert "cpu_quota none → 1.5 pending" in "\n".join(drawn(STATUS, width=200))


def test_a_computed_value_has_four_figures() -> None:
    history = History()
    change = DECISIONS[0]["action"][0] | {"from": 0.9440288551, "to": 1.18}
    history.add(STATUS, [DECISIONS[0] | {"action": [change]}])
    assert "0.944 → 1.18" in "\n".join(drawn(STATUS, history, width=200))


def test_problems_and_the_notice_are_at_the_top() -> None:
    lines = drawn(STATUS | {"problems": ["one", "two", "three"]}, notice="zero")
    assert lines[1:4] == ["! zero", "! one", "! two (+1 more)"]


def test_a_dead_controller_is_seen() -> None:
    status = STATUS | {"controller": {"alive": False, "pid": None, "restarts": 3}, "loop": None}
    assert "controller dead" in drawn(status)[0]


def test_the_upper_row_of_a_chart_is_what_is_over_the_slo() -> None:
    history = History()
    for gap_ms in (None, 1.0, 60.0, 119.0, 180.0, 240.0, 4000.0):
        status = with_p99(gap_ms)
        history.add(status)
    lines = drawn(status, history)
    upper = next(line for line in lines if "SLO 120" in line).split("SLO 800")[0].rstrip()
    lower = next(line for line in lines if "gap p99" in line).split("TTFT")[0].rstrip()
    assert upper.endswith("....▄██")
    assert lower.endswith(" ▁▄████")


def test_history_is_bounded_and_forgets_engines_that_are_gone() -> None:
    history = History()
    for number in range(POINTS + 10):
        history.add(with_p99(float(number)))
    assert len(history.gap_ms["chat"]) == POINTS
    assert history.gap_ms["chat"][-1] == POINTS + 9
    history.add(with_engines(1))
    assert set(history.gap_ms) == set(history.ttft_ms) == {"engine-0"}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 10), (200, 50), (40, 5), (20, 1)])
@pytest.mark.parametrize("engines", [0, 1, 4, 30])
def test_a_frame_fits_the_size_it_is_given(width: int, height: int, engines: int) -> None:
    status = with_engines(engines) | {"problems": ["x" * 300] * 5}
    status["neighbours"] = STATUS["neighbours"] * 10
    lines = drawn(status, width=width, height=height)
    assert len(lines) <= height
    assert max(Text(line).cell_len for line in lines) <= width


def test_one_engine_on_a_small_terminal_has_everything() -> None:
    text = "\n".join(drawn(STATUS, width=80, height=24))
    for part in ("ENGINE", "gap p99", "TTFT p99", "NEIGHBOURS", "DECISIONS"):
        assert part in text


def test_where_room_is_short_engines_come_before_charts() -> None:
    lines = drawn(with_engines(12), width=80, height=24)
    assert sum(line.startswith("engine") for line in lines) == 12
    assert not any("gap p99" in line for line in lines)


def test_an_engine_that_is_not_found_takes_one_line() -> None:
    lines = drawn(STATUS | {"engines": [UNSEEN]})
    place = lines.index("draft not found: no unit draft.service")
    assert lines[place - 1].startswith("ENGINE")
    assert lines[place + 1] == ""


def test_an_engine_without_traffic_shows_no_figures() -> None:
    text = "\n".join(drawn(STATUS | {"engines": [UNSEEN | {"found": True}]}))
    assert "–/– ≤ 800" in text
    assert "None" not in text
    assert "nan" not in text


# No deadline: a busy machine is no fault.
@settings(deadline=None)
@given(
    gap_ms=st.none() | st.floats(0, 1e9),
    ttft_ms=st.none() | st.floats(0, 1e9),
    attainment=st.none() | st.floats(0, 1),
    pressure=st.floats(0, 1),
    text=st.text(max_size=40),
    width=st.integers(1, 250),
    height=st.none() | st.integers(1, 60),
)
def test_any_figures_and_any_text_make_a_frame_of_the_size_given(
    gap_ms: float | None,
    ttft_ms: float | None,
    attainment: float | None,
    pressure: float,
    text: str,
    width: int,
    height: int | None,
) -> None:
    status = with_p99(gap_ms, ttft_ms)
    status["engines"][0] |= {"name": text, "attainment": attainment, "cause": text}
    status["engines"][0]["backpressure"] = ENGINE["backpressure"] | {"value": pressure}
    status |= {"problems": [text], "mode": text}
    lines = drawn(status, width=width, height=height)
    assert all(line.isprintable() for line in lines)
    assert max(Text(line).cell_len for line in lines) <= width
    assert height is None or len(lines) <= height


class Terminal:
    """`sitsctl top` on a pseudo-terminal of its own."""

    def __init__(self, path: Path, columns: int, lines: int) -> None:
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.Stream(self.screen)
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.output = self.seen = ""
        self.process = subprocess.Popen(
            [
                "setsid",
                "--ctty",
                Path(sys.executable).with_name("sitsctl"),
                "top",
                "--interval",
                ".1",
            ],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={"PATH": os.environ["PATH"], "SITS_SOCKET": str(path), "TERM": "xterm-256color"},
        )

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("4H", lines, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        self.screen.resize(lines, columns)

    def until(self, pattern: str) -> str:
        """What comes until `pattern` has; earlier output is forgotten."""
        self.output = ""
        self._wait(lambda: re.search(pattern, self.output), pattern)
        return self.output

    def shows(self, pattern: str) -> str:
        """What is on the screen once `pattern` is."""
        self._wait(lambda: re.search(pattern, "\n".join(self.screen.display)), pattern)
        return "\n".join(self.screen.display)

    def _wait(self, seen: Callable[[], object], what: str) -> None:
        os.set_blocking(self.master, False)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        give_up = time.monotonic() + QUIT_S
        while not seen():
            assert time.monotonic() < give_up, f"no {what!r} in {self.output[-5000:]!r}"
            try:
                more = decoder.decode(os.read(self.master, 65536))
            except BlockingIOError:
                time.sleep(0.01)
                continue
            self.output += more
            self.seen += more
            self.stream.feed(more)

    def ended(self) -> int:
        """The exit code, once it has left its screen; the terminal must be as it was."""
        if ENTER in self.seen and LEAVE not in self.output:
            self.until(re.escape(LEAVE))
        code = self.process.wait(QUIT_S)
        assert termios.tcgetattr(self.slave) == self.before
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextmanager
def terminal(path: Path, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    shown = Terminal(path, columns, lines)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with served(RecordedView(), tmp_path / "admin.sock") as socket_path:
        yield socket_path


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_q_and_ctrl_c_end_it_and_restore_the_terminal(path: Path, key: str) -> None:
    with terminal(path) as shown:
        shown.shows("DECISIONS")
        assert ENTER in shown.seen
        os.write(shown.master, key.encode())
        assert SHOW_CURSOR in shown.until(re.escape(LEAVE))
        assert shown.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_end_by_signal_restores_the_terminal(path: Path, number: signal.Signals) -> None:
    with terminal(path) as shown:
        shown.shows("DECISIONS")
        shown.process.send_signal(number)
        shown.until(re.escape(LEAVE))
        assert shown.ended() == 128 + number


def test_another_size_is_used_at_once(path: Path) -> None:
    with terminal(path, 80, 24) as shown:
        shown.shows("DECISIONS")
        shown.resize(150, 30)
        # Only a wide terminal has room for all of this decision.
        shown.shows(r"cpu_quota none → 1\.5")
        os.write(shown.master, b"q")
        assert shown.ended() == 0


def test_other_keys_do_nothing(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("DECISIONS")
        os.write(shown.master, b"xyz\x1b[A\n")
        shown.until(r"\d\d:\d\d:\d\d")
        head, *_ = shown.shows("q quit").splitlines()
        assert "by " not in head
        assert "held" not in head
        os.write(shown.master, b"q")
        assert shown.ended() == 0


def test_an_agent_that_goes_away_is_shown_and_one_that_comes_back_too(tmp_path: Path) -> None:
    socket_path = tmp_path / "admin.sock"
    with served(RecordedView(), socket_path):
        shown = Terminal(socket_path, 80, 24)
        try:
            shown.shows("no problems")
        except BaseException:
            shown.close()
            raise
    try:
        assert "chat" in shown.shows("could not reach sitsd")
        with served(RecordedView(), socket_path):
            shown.shows("no problems")
            os.write(shown.master, b"q")
            assert shown.ended() == 0
    finally:
        shown.close()


def test_without_an_agent_it_does_not_start(tmp_path: Path) -> None:
    with terminal(tmp_path / "none.sock") as shown:
        output = shown.until("systemctl status sitsd")
        assert ENTER not in output
        assert shown.ended() == 3


def test_s_sorts_and_space_holds(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("DECISIONS")
        os.write(shown.master, b"s")
        shown.shows("by name")
        os.write(shown.master, b" ")
        shown.shows("by name · held")
        os.write(shown.master, b"q")
        assert shown.ended() == 0


def test_on_80_by_24_every_part_is_whole_and_the_keys_are_named(path: Path) -> None:
    with terminal(path, 80, 24) as shown:
        lines = [line.rstrip() for line in shown.shows("q quit").splitlines()]
        assert lines[0].startswith("sits control · controller pid 4121")
        assert re.search(r"\d\d:\d\d:\d\d$", lines[0])
        assert lines[-1] == "q quit · s, S sort · space hold"
        # of what is shown only a decision may be longer than its line
        assert all("…" not in line for line in lines[: lines.index("DECISIONS")])
        os.write(shown.master, b"q")
        assert shown.ended() == 0


def test_what_stays_the_same_is_not_written_again(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("DECISIONS")
        shown.until(r"\d\d:\d\d:\d\d")
        again = shown.until(r"\d\d:\d\d:\d\d")
        assert "NEIGHBOURS" not in again
        os.write(shown.master, b"q")
        assert shown.ended() == 0
