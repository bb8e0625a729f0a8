"""One daemon's limit over time: when it is held, when not, and what is said of it."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from controller.kept_file import KeptFile, UndoError
from controller.mps.clients import are_clients
from controller.mps.control import DEFAULT, Control, MpsError, State
from controller.mps.limit import ForeignError, Held, hold, parse_held, release
from controller.mps.undo import HOLDER
from controller.policy_model import Mode

REFUSED_S: Final = 60.0
"""So long a daemon that refused is left alone, rather than set and put back all the time."""

TELLING: Final = frozenset({State.ENGINE, State.NO_PROGRAM, State.REFUSED, State.HUNG})
"""What a journal should have of the states in which nothing is held."""

Tell = Callable[[str, str, Mapping[str, Any]], None]
"""Journals an event: its kind, its subject and the details."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What policy and mode ask of one daemon; `engines` are the processes of each engine."""

    pipe_directory: Path
    percent: int
    mode: Mode
    engines: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Shown:
    """How it stands. `percent` is what a client gets that starts now, None if we hold nothing."""

    state: State = State.OFF
    detail: str = "nothing is known yet"
    percent: float | None = None
    before: float | None = None
    servers: int = 0


@dataclass(frozen=True, slots=True)
class _Rest:
    """What is left alone, and until when: this limit on this daemon, directory and instance."""

    key: tuple[str, float, str]
    until_s: float
    shown: Shown


def held_back(asked: Asked, clients: Mapping[str, bool]) -> tuple[State, str] | None:
    """Why nothing may be held: an engine is a client, or could be. None if none is.

    `clients` says of each engine that was seen running whether it looks for this daemon; one that
    does not run now keeps what it was, since it comes back as that.
    """
    ours = [name for name in asked.engines if clients.get(name)]
    if ours:
        return State.ENGINE, (
            f"{_listed(ours)} is a client of '{asked.pipe_directory}': started again, an engine"
            " would be limited for as long as it runs"
        )
    unseen = [name for name in asked.engines if name not in clients]
    if unseen:
        return State.WAITING, (
            f"{_listed(unseen)} has not been seen running: it could be a client of"
            f" '{asked.pipe_directory}'"
        )
    return None


@dataclass(slots=True, eq=False)
class Keeping:
    """The limit on the clients of one daemon; `path` is its undo file.

    All calls from one thread; each waits for the control program, a bounded time.
    """

    name: str
    path: Path
    tell: Tell
    _file: KeptFile | None = field(default=None, init=False)
    _held: Held | None = field(default=None, init=False)
    _control: Control | None = field(default=None, init=False)
    _sure: bool = field(default=False, init=False)
    _clients: dict[str, bool] = field(default_factory=dict, init=False)
    _clients_of: Path | None = field(default=None, init=False)
    _rest: "_Rest | None" = field(default=None, init=False)
    _last: Shown = field(default_factory=Shown, init=False)

    @property
    def done(self) -> bool:
        """Whether nothing is left to undo."""
        return self._file is not None and self._held is None

    def turn(self, asked: Asked | None) -> Shown:
        """Look, hold or put back; None asks for nothing more. Never raises for what is outside."""
        try:
            shown = self._turn(asked)
        except MpsError as error:
            self._sure = False
            shown = Shown(error.state, str(error))
        except (UndoError, OSError) as error:
            self._sure = False
            shown = Shown(State.REFUSED, str(error))
        if shown.state is not self._last.state:
            if shown.state in TELLING:
                detail = {"state": str(shown.state), "detail": shown.detail}
                self.tell("mps_refused", self.name, detail)
            elif shown.state is State.SHADOW and asked is not None:
                self.tell("mps_would_limit", self.name, _limit_of(asked))
        self._last = shown
        return shown

    def close(self) -> None:
        """Let go of the undo file; what it says stays to be undone."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _turn(self, asked: Asked | None) -> Shown:
        file = self._opened()
        self._see(asked)
        if asked is None or asked.mode != "control":
            self._rest = None
            self._put_back(file, "the mode" if asked is not None else "it is no longer asked for")
            return _not_held(asked, self._clients)
        if (back := held_back(asked, self._clients)) is not None:
            state, why = back
            if state is State.ENGINE and self._held is not None:
                why += "; if it was started while the limit was held, it has it: start it again"
            self._put_back(file, why)
            return Shown(state, why)
        wanted = (str(asked.pipe_directory), float(asked.percent))
        if self._held is not None and (
            not self._sure or wanted != (self._held.pipe_directory, self._held.percent)
        ):
            self._put_back(file, "to begin anew")
        control = self._control_of(asked.pipe_directory, file)
        key = (*wanted, control.instance())
        rest = self._rest
        if rest is not None and rest.key == key and time.monotonic() < rest.until_s:
            return rest.shown
        return self._hold(file, control, asked, key)

    def _hold(
        self, file: KeptFile, control: Control, asked: Asked, key: tuple[str, float, str]
    ) -> Shown:
        before = self._held

        def save(held: Held) -> None:
            file.save(asdict(held))
            self._held = held

        try:
            self._held = hold(control, asked.percent, before, save)
        except ForeignError as error:
            shown = Shown(State.FOREIGN, f"somebody else has set it, and has it: {error}")
            self._rest = _Rest(key, math.inf, shown)
            self.tell("foreign_write", f"mps {self.name}", {"found": str(error)})
            self._put_back(file, "somebody else has set it")
            return shown
        except MpsError as error:
            if error.state is not State.REFUSED:
                raise
            shown = Shown(State.REFUSED, str(error))
            self._sure, self._rest = False, _Rest(key, time.monotonic() + REFUSED_S, shown)
            with suppress(MpsError):
                self._put_back(file, "it was refused")
            return shown
        self._sure = True
        own = self._held.before[DEFAULT]
        if before is None or before.instance != self._held.instance:
            self.tell("mps_limited", self.name, _limit_of(asked) | {"before": own})
        servers = len(self._held.before) - 1
        return Shown(State.OK, "", min(own, self._held.percent), own, servers)

    def _put_back(self, file: KeptFile, why: str) -> None:
        if self._held is None:
            return
        held = self._held
        said = release(self._control_of(Path(held.pipe_directory), file), held)
        file.clear()
        self._held = None
        self.tell("mps_restored", self.name, {"why": why, "done": said})

    def _opened(self) -> KeptFile:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = KeptFile(self.path, HOLDER)
            try:
                self._held = file.load(parse_held)
            except UndoError:
                file.close()
                raise
            self._file = file
        return self._file

    def _see(self, asked: Asked | None) -> None:
        """Which engines are clients, of those that run."""
        if asked is None:
            return
        if asked.pipe_directory != self._clients_of:
            self._clients, self._clients_of = {}, asked.pipe_directory
        for name, pids in asked.engines.items():
            answer = are_clients(pids, asked.pipe_directory)
            if answer is not None:
                self._clients[name] = answer
        for name in self._clients.keys() - asked.engines.keys():
            del self._clients[name]

    def _control_of(self, directory: Path, file: KeptFile) -> Control:
        """The one there is, since it knows of a program that can't be killed."""
        if self._control is None or self._control.directory != directory:
            self._control = Control(directory, (file.lock,))
        return self._control


def _not_held(asked: Asked | None, clients: Mapping[str, bool]) -> Shown:
    if asked is None:
        return Shown(State.OFF, "it is no longer asked for")
    if asked.mode != "shadow":
        return Shown(State.OFF, f"nothing is set in mode {asked.mode}")
    if (back := held_back(asked, clients)) is not None:
        return Shown(*back)
    return Shown(
        State.SHADOW, f"in mode control, clients that start would get {asked.percent}% at the most"
    )


def _limit_of(asked: Asked) -> dict[str, Any]:
    return {"percent": asked.percent, "pipe_directory": str(asked.pipe_directory)}


def _listed(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    return f"engine {names[0]}{'' if len(names) == 1 else f' (and {len(names) - 1} more)'}"
