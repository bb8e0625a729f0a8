"""HAProxy, by its runtime API on its Unix socket: a gate for engines that have no knobs themselves.

`max_running` is the sum of the servers' `maxconn`: HAProxy holds what is over in its queue. Servers
share it as they do in the configuration. `max_queued` is a process-wide variable that a rule of the
configuration compares the queue with before it lets a request in; docs/engines.md has the lines.

A connection is made for each exchange: one that stays would keep talking to the process that a
reload has replaced, and keep that from ending. The frontend's `maxconn` is never touched: it counts
connections, so idle clients would starve others.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from controller.adapters.driver import AdapterError, EngineChangedError, Figures, Identity
from controller.engines.contract import KNOBS, Knob

TIMEOUT_S: Final = 5.0
"""For one exchange: a machine that is short of CPU is slow, not gone."""

MOST_BYTES: Final = 1 << 20
"""Of one answer: a thousand servers."""

MAX_RUNNING: Final = "max_running"
MAX_QUEUED: Final = "max_queued"
GATE: Final = "sits"
"""The variables are proc.GATE_max_queued and proc.GATE_shed, if the settings name no other gate."""

_PROMPT: Final = b"\n> "
_USABLE: Final = ("UP", "no check")


def connect(settings: Mapping[str, str]) -> "HaproxyDriver":
    """The driver for `address` (the runtime socket), `backend`, and its `server` if only one."""
    return HaproxyDriver(
        settings["address"],
        settings["backend"],
        settings.get("server"),
        settings.get("gate", GATE),
    )


@dataclass(frozen=True, slots=True)
class Server:
    """One server of the backend, as `show stat` has it.

    `finished` are sessions that ended by themselves; `maxconn` is 0 for no limit.
    """

    name: str
    maxconn: int
    queued: int
    running: int
    sessions: int
    finished: int
    is_backup: bool
    is_usable: bool


@dataclass(frozen=True, slots=True)
class Backend:
    """What `show stat` has of a backend: its servers, and who waits for no server in particular."""

    servers: Mapping[str, Server]
    queued: int

    def serving(self) -> tuple[str, ...]:
        """The servers that requests go to now: the backups if no other is usable."""
        for is_backup in (False, True):
            names = [
                name
                for name, server in self.servers.items()
                if server.is_usable and server.is_backup == is_backup
            ]
            if names:
                return tuple(names)
        return tuple(name for name, server in self.servers.items() if not server.is_backup)


@dataclass(frozen=True, slots=True)
class Base:
    """What was in force before anything was written: each server's `maxconn`, and the queue's.

    `serving` are the servers whose `maxconn` add up to `max_running`.
    """

    maxconn: Mapping[str, int]
    serving: tuple[str, ...]
    max_queued: int | None

    @property
    def max_running(self) -> int:
        """The sum over the servers that serve."""
        return sum(self.maxconn[name] for name in self.serving)

    def shares(self, max_running: int) -> dict[str, int]:
        """Each server's part of `max_running`, in proportion, at least 1.

        Those that serve add up to it (by largest remainders); the others follow, so that a standby
        that takes over is not larger than what it stands in for.
        """
        total = self.max_running
        exact = {name: most * max_running / total for name, most in self.maxconn.items()}
        parts = {name: max(1, int(part)) for name, part in exact.items()}
        left = max_running - sum(parts[name] for name in self.serving)
        by_rest = sorted(self.serving, key=lambda name: parts[name] - exact[name])
        while left > 0:
            for name in by_rest[:left]:
                parts[name] += 1
            left = max_running - sum(parts[name] for name in self.serving)
        for name in sorted(self.serving, key=lambda name: -parts[name]):
            if left >= 0:
                break
            given = min(parts[name] - 1, -left)
            parts[name] -= given
            left += given
        return parts


class HaproxyDriver:
    """A `Driver` for one backend."""

    def __init__(self, address: str, backend: str, server: str | None, gate: str) -> None:
        """Nothing is sent yet."""
        self._address = address
        self._backend = backend
        self._server = server
        self._limit = f"proc.{gate}_max_queued"
        self._shed = f"proc.{gate}_shed"
        self._process = ""
        self._base: Base | None = None

    def identify(self) -> Identity:
        """The process that listens; a reload makes another."""
        with self._session() as ask:
            info = self._info(ask)
            backend = self._stat(ask)
        self._process = _process(info)
        if self._base is not None and backend.serving() != self._base.serving:
            servers = ", ".join(backend.serving())
            raise EngineChangedError(f"backend {self._backend} is served by {servers} now")
        return Identity("haproxy", info.get("Version", ""), self._process, int(info["Pid"]))

    def knobs(self) -> Mapping[str, Knob]:
        """`max_running`, and `max_queued` where the configuration has its variable."""
        with self._session() as ask:
            backend, limit = self._stat(ask), self._get(ask, self._limit)
        for server in backend.servers.values():
            if server.maxconn < 1:
                raise AdapterError(
                    f"server {self._backend}/{server.name} has no maxconn: give it one in the"
                    " configuration, the most that its engine is to get at once"
                )
        maxconn = {name: server.maxconn for name, server in backend.servers.items()}
        base = self._base = Base(maxconn, backend.serving(), limit)
        knobs = {
            MAX_RUNNING: Knob(
                MAX_RUNNING,
                len(base.serving),
                base.max_running,
                base.max_running,
                KNOBS[MAX_RUNNING],
            )
        }
        if limit is not None and limit >= 1:
            knobs[MAX_QUEUED] = Knob(MAX_QUEUED, 1, limit, limit, KNOBS[MAX_QUEUED])
        return knobs

    def keep(self) -> Mapping[str, object]:
        """Each server's own `maxconn`, which their sum does not tell."""
        base = self._known()
        return {
            "maxconn": dict(base.maxconn),
            "serving": list(base.serving),
            "max_queued": base.max_queued,
        }

    def recall(self, kept: Mapping[str, object]) -> None:
        """Take the `maxconn` of an earlier process for those of the configuration."""
        maxconn, serving, queued = (kept.get(name) for name in ("maxconn", "serving", "max_queued"))
        if not isinstance(maxconn, dict) or not isinstance(serving, list) or not serving:
            raise AdapterError(f"the undo file has no servers of backend {self._backend}")
        if not all(type(most) is int and most > 0 for most in maxconn.values()):
            raise AdapterError(f"the undo file has a maxconn that can't be: {maxconn!r:.80}")
        if not set(serving) <= set(maxconn) or type(queued) not in {int, type(None)}:
            raise AdapterError("the undo file contradicts itself")
        self._base = Base(maxconn, tuple(serving), queued if isinstance(queued, int) else None)

    def read(self) -> Mapping[str, float]:
        """What is in force, by `show stat` and `get var`."""
        with self._session() as ask:
            return self._in_force(ask)

    def write(self, values: Mapping[str, float]) -> None:
        """Set each server's `maxconn` and the queue's limit, in the process last identified."""
        with self._session() as ask:
            if _process(self._info(ask)) != self._process:
                raise AdapterError("HAProxy has reloaded or restarted meanwhile")
            found = self._in_force(ask)
            # a change that was cut short may leave the sum of the start values in other parts
            start = self._known().max_running
            wanted = {
                name: value
                for name, value in values.items()
                if found.get(name) != value or (name == MAX_RUNNING and value == start)
            }
            for command in self._commands(wanted):
                said = ask(command).strip()
                if said:
                    raise AdapterError(f"HAProxy refused '{command}': {said:.120}")

    def figures(self) -> Figures:
        """The queue, what the servers have, and what ended; `shed_total` where it is counted."""
        with self._session() as ask:
            backend, shed = self._stat(ask), self._get(ask, self._shed)
        servers = backend.servers.values()
        waiting = backend.queued + sum(server.queued for server in servers)
        return Figures(
            waiting=waiting,
            running=sum(server.running for server in servers),
            requests_total=waiting + sum(server.sessions for server in servers),
            finished_total=sum(server.finished for server in servers),
            shed_total=shed,
        )

    def close(self) -> None:
        """Nothing is held."""

    def _in_force(self, ask: "_Ask") -> Mapping[str, float]:
        base = self._known()
        backend, limit = self._stat(ask), self._get(ask, self._limit)
        gone = [name for name in base.maxconn if name not in backend.servers]
        if gone:
            raise EngineChangedError(f"backend {self._backend} has no {', '.join(gone)} any more")
        values = {MAX_RUNNING: float(sum(backend.servers[name].maxconn for name in base.serving))}
        if base.max_queued is not None and limit is not None:
            values[MAX_QUEUED] = float(limit)
        return values

    def _commands(self, wanted: Mapping[str, float]) -> list[str]:
        """What puts `wanted` in force. All of it is checked first: HAProxy takes -3 and 0 too."""
        base, commands = self._known(), []
        if MAX_RUNNING in wanted:
            most, least = base.max_running, len(base.serving)
            running = _whole(MAX_RUNNING, wanted[MAX_RUNNING], least, most)
            parts = base.maxconn if running == most else base.shares(running)
            commands += [
                f"set maxconn server {self._backend}/{name} {part}" for name, part in parts.items()
            ]
        if MAX_QUEUED in wanted:
            limit = _whole(MAX_QUEUED, wanted[MAX_QUEUED], 1, base.max_queued or 0)
            commands += ["experimental-mode on", f"set var {self._limit} int({limit})"]
        return commands

    def _known(self) -> Base:
        if self._base is None:
            raise AdapterError("the servers are not known yet")
        return self._base

    @contextmanager
    def _session(self) -> Iterator["_Ask"]:
        """One connection for several commands, which all reach the same process."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(TIMEOUT_S)
                sock.connect(self._address)
                ask = _Ask(sock)
                ask("prompt")
                yield ask
        except OSError as error:
            raise AdapterError(
                f"could not talk to HAProxy at '{self._address}': {error}"
            ) from error

    def _info(self, ask: "_Ask") -> Mapping[str, str]:
        lines = (line.partition(": ") for line in ask("show info").splitlines())
        info = {name: value for name, _, value in lines}
        if not info.get("Pid", "").isdecimal():
            raise AdapterError(f"what listens at '{self._address}' does not answer as HAProxy")
        return info

    def _stat(self, ask: "_Ask") -> Backend:
        """Types 2 and 4 of `show stat`: the backend and its servers."""
        said = ask(f"show stat {self._backend} 6 -1")
        what = self._backend + (f"/{self._server}" if self._server else "")
        if said.startswith("No such proxy"):
            raise AdapterError(f"HAProxy has no backend '{what}'")
        backend = parse_stat(said, self._server)
        if not backend.servers:
            raise AdapterError(f"HAProxy has no server '{what}'")
        return backend

    def _get(self, ask: "_Ask", variable: str) -> int | None:
        """A process-wide variable; None if the configuration does not set it to a number."""
        _, found, value = ask(f"get var {variable}").strip().partition("type=sint value=<")
        return int(value.removesuffix(">")) if found else None


class _Ask:
    """Sends one command and returns the answer without the prompt."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ends_s = time.monotonic() + TIMEOUT_S

    def __call__(self, command: str) -> str:
        self._sock.sendall(command.encode() + b"\n")
        said = b""
        while not (said.endswith(_PROMPT) or said == _PROMPT.lstrip()):
            if time.monotonic() > self._ends_s:
                raise TimeoutError(f"no whole answer to '{command}'")
            received = self._sock.recv(65536)
            if not received or len(said) > MOST_BYTES:
                raise ConnectionError(f"no answer to '{command}'")
            said += received
        return said.removesuffix(b"> ").decode(errors="replace")


def parse_stat(text: str, only: str | None = None) -> Backend:
    """A backend out of the CSV of `show stat`; `AdapterError` if a column is missing or no number.

    `only` is the server to look at; the others are left out.
    """
    lines = text.strip().splitlines()
    if not lines or not lines[0].startswith("# "):
        raise AdapterError(f"HAProxy answered 'show stat' with {text.strip()!r:.80}")
    names = lines[0].removeprefix("# ").split(",")
    servers, queued = {}, 0
    for line in lines[1:]:
        row = dict(zip(names, line.split(","), strict=False))
        try:
            if row["svname"] == "BACKEND":
                queued = _number(row, "qcur")
            elif only in {None, row["svname"]}:
                server = _server(row)
                servers[server.name] = server
        except (KeyError, ValueError) as error:
            raise AdapterError(f"could not read HAProxy's statistics: {error}") from error
    return Backend(servers, queued)


def _server(row: Mapping[str, str]) -> Server:
    sessions, running = _number(row, "stot"), _number(row, "scur")
    broken = sum(_number(row, name) for name in ("cli_abrt", "srv_abrt", "econ", "eresp"))
    return Server(
        name=row["svname"],
        maxconn=_number(row, "slim"),
        queued=_number(row, "qcur"),
        running=running,
        sessions=sessions,
        finished=max(0, sessions - running - broken),
        is_backup=_number(row, "bck") > 0,
        is_usable=row["status"].startswith(_USABLE) and _number(row, "weight") > 0,
    )


def _number(row: Mapping[str, Any], name: str) -> int:
    return int(row[name] or 0)


def _process(info: Mapping[str, str]) -> str:
    """A pid is used again; with its start time it is not."""
    return f"{info['Pid']}.{info.get('Start_time_sec', '')}"


def _whole(name: str, value: float, least: int, most: int) -> int:
    if not float(value).is_integer() or not least <= value <= most:
        raise AdapterError(f"{name} must be a whole number from {least} to {most}, not {value:g}")
    return int(value)
