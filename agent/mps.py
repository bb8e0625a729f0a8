"""The limits on clients of MPS control daemons that the policy names, each kept in a thread.

A control program that hangs holds up its own thread and nothing else: not the fast loop, which is
another process, not the main thread, and not the end, which waits for `STOP_TIMEOUT_S` at the most.
What a thread could not put back then is on its undo file, for the guard, `sitsd --undo` and the
next start.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from agent.discovery import Found
from controller.mps.control import State
from controller.mps.keeping import Asked, Keeping, Shown, Tell
from controller.mps.undo import names_left, undo_path
from controller.policy_model import Mode, Policy

LOOK_EVERY_S: Final = 5.0
STOP_TIMEOUT_S: Final = 3.0

WELL: Final = frozenset({State.OK, State.OFF, State.SHADOW})

JsonObject = dict[str, Any]


class MpsLimits:
    """All of them. `tick` and `stop` are for the main thread, the rest for any."""

    def __init__(self, directory: Path, tell: Tell, wake: Callable[[], None]) -> None:
        """`directory` has the undo files; `tell` journals, from `tick`; `wake` asks for one."""
        self._directory = directory
        self._tell = tell
        self._wake = wake
        self._said: queue.SimpleQueue[tuple[str, str, Mapping[str, Any]]] = queue.SimpleQueue()
        self._threads: dict[str, _Thread] = {}
        self._ending = {name: self._started(name, None) for name in names_left(directory)}

    def tick(self, policy: Policy, mode: Mode, engines: Iterable[Found]) -> None:
        """Ask of each thread what policy and mode say, and journal what they did."""
        pids = {found.name: found.pids for found in engines}
        running = {each.name: pids.get(each.name, frozenset()) for each in policy.engines}
        wanted = {
            each.name: Asked(each.pipe_directory, each.active_thread_percent, mode, running)
            for each in policy.mps
        }
        for name in self._threads.keys() - wanted.keys():
            self._ending[name] = self._threads.pop(name)
            self._ending[name].ask(None)
        for name, asked in wanted.items():
            thread = self._threads.get(name) or self._ending.pop(name, None)
            if thread is None or not thread.is_alive():
                thread = self._started(name, asked)
            thread.ask(asked)
            self._threads[name] = thread
        self._ending = {name: each for name, each in self._ending.items() if each.is_alive()}
        self._journal()

    def status(self) -> list[JsonObject]:
        """How each stands, for JSON; one that is no longer asked for until it is put back."""
        return [each.status() for each in [*self._threads.values(), *self._ending.values()]]

    @property
    def problems(self) -> list[str]:
        """What is wrong with them."""
        return [
            f"MPS limit {each['name']}: {each['state']}: {each['detail']}"
            for each in self.status()
            if each["state"] not in WELL
        ]

    def stop(self) -> None:
        """Put all back, as far as that can be done in time."""
        self._ending |= self._threads
        self._threads = {}
        ends_s = time.monotonic() + STOP_TIMEOUT_S
        for each in self._ending.values():
            each.ask(None)
        for each in self._ending.values():
            each.join(max(0.0, ends_s - time.monotonic()))
        self._journal()

    def _started(self, name: str, asked: Asked | None) -> "_Thread":
        thread = _Thread(Keeping(name, undo_path(self._directory, name), self._hear), asked)
        thread.start()
        return thread

    def _hear(self, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        self._said.put((kind, subject, detail))
        self._wake()

    def _journal(self) -> None:
        while not self._said.empty():
            self._tell(*self._said.get())


def limit_text(limit: Mapping[str, Any]) -> str:
    """A status in a line."""
    if limit["state"] != State.OK:
        return f"{limit['state']}: {limit['detail']}"
    return f"clients that start now get {limit['percent']:g}% at the most"


class _Thread(threading.Thread):
    """Turns one `Keeping`, until it is asked for nothing and nothing is left to undo."""

    def __init__(self, keeping: Keeping, asked: Asked | None) -> None:
        super().__init__(name=f"mps-{keeping.name}", daemon=True)
        self._keeping = keeping
        self._changed = threading.Condition()
        self._asked = asked
        self._shown = Shown()

    def ask(self, asked: Asked | None) -> None:
        """Ask for this from now on: at once, unless only processes of engines are others."""
        with self._changed:
            before, self._asked = self._asked, asked
            if _plain(before) != _plain(asked):
                self._changed.notify()

    def run(self) -> None:
        """The thread."""
        try:
            while True:
                with self._changed:
                    asked = self._asked
                self._shown = self._keeping.turn(asked)
                if asked is None and self._keeping.done:
                    return
                with self._changed:
                    if _plain(self._asked) == _plain(asked):
                        self._changed.wait(LOOK_EVERY_S)
        finally:
            self._keeping.close()

    def status(self) -> JsonObject:
        """How it stands, and what is asked for, for JSON."""
        asked = self._asked
        return {
            "name": self._keeping.name,
            "pipe_directory": str(asked.pipe_directory) if asked is not None else None,
            "asked_percent": asked.percent if asked is not None else None,
            **asdict(self._shown),
        }


def _plain(asked: Asked | None) -> Asked | None:
    """What is asked, with only whether an engine runs."""
    if asked is None:
        return None
    some = {name: frozenset({0}) if pids else pids for name, pids in asked.engines.items()}
    return replace(asked, engines=some)
