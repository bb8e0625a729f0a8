import io
import os
import pty
import sys
import time
from contextlib import suppress

import pytest

from agent import progress
from agent.progress import Progress, line, waiting


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> str:
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress("replaying", 4) as made:
            for _ in range(4):
                made()
        terminal.write("end")
    said = b""
    # a pseudo-terminal whose other end is closed gives what is left, in pieces, and then an error
    with suppress(OSError):
        while part := os.read(master, 4096):
            said += part
    os.close(master)
    return said.decode()


def test_what_takes_long_says_how_far_it_is_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = on_a_terminal(monkeypatch, 0)
    assert f"\r{line('replaying', 1, 4)}" in said
    assert said.endswith("\r\033[Kend")


def test_what_is_done_soon_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_a_terminal(monkeypatch, 60) == "end"


def test_what_is_no_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with Progress("replaying", 1) as made:
        made()
    assert said.getvalue() == ""


def test_what_takes_nobody_knows_how_long_is_said_to_be_waited_for_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with waiting("waiting for them", after_s=0):
            assert os.read(master, 4096).decode() == "waiting for them …"
        assert os.read(master, 4096).decode() == "\r\033[K"
        with waiting("waiting for them", after_s=60):
            pass
        terminal.write("end")
        terminal.flush()
        assert os.read(master, 4096).decode() == "end"
    os.close(master)


def test_nobody_is_told_of_waiting_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with waiting("waiting for them", after_s=0):
        time.sleep(0.05)
    assert said.getvalue() == ""


@pytest.mark.parametrize(("done", "whole"), [(0, 0), (0, 4), (4, 4), (9, 4)])
def test_a_line_is_always_as_long(done: int, whole: int) -> None:
    shown = line("x", done, whole)
    assert len(shown) - len(f"{done}{whole}") == len(line("x", 0, 0)) - 2
