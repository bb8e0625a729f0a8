"""sitsd beside the demonstration: its policy, its start, and what it is asked afterwards."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agent.client import AgentClient, ClientError
from demo.rig import Rig, RigError
from demo.stage import Stage, free_port
from demo.stats import Slo

ENGINE: Final = "demo"
ATTAINMENT: Final = 0.97
READY_WITHIN_S: Final = 20.0
SHOWN: Final = 20
PAGE: Final = 1000
"""Streams or decisions asked for at once."""


def policy_text(
    rig: Rig,
    stage: Stage,
    slo: Slo,
    metrics_port: int,
    mode: str = "observe",
    state_dir: Path | None = None,
) -> str:
    """The policy of this run: one engine, its neighbours, nothing outside the run's directory.

    `state_dir` is below the run's directory without one given.
    """
    lines = [
        f'mode = "{mode}"',
        "[agent]",
        f'metrics_address = "127.0.0.1:{metrics_port}"',
        f"admin_socket = {_quoted(rig.run_dir / 'admin.sock')}",
        f"run_dir = {_quoted(rig.run_dir / 'sits')}",
        f"state_dir = {_quoted(state_dir or rig.run_dir / 'state')}",
        f"pin_dir = {_quoted(rig.pin_dir)}",
        f"[engines.{ENGINE}]",
        f"cgroup = {_quoted(rig.groups.path('engine'))}",
        f"admin_socket = {_quoted(stage.admin_socket)}",
        f"slo = {{ ttft_ms = {slo.ttft_ms}, gap_ms = {slo.gap_ms}, attainment = {ATTAINMENT} }}",
    ]
    for name in rig.neighbour_names:
        lines += [f"[neighbours.{name}]", f"cgroup = {_quoted(rig.groups.path(name))}"]
    return "\n".join(lines) + "\n"


class Sits:
    """A running sitsd."""

    def __init__(self, client: AgentClient, process: subprocess.Popen[bytes]) -> None:
        self.client = client
        self.process = process
        self._last_stream = 0

    def new_streams(self, ended: int) -> list[Mapping[str, Any]]:
        """The streams that ended since the last call; waits a moment until there are `ended`."""
        streams: list[Mapping[str, Any]] = []
        until = time.monotonic() + 3.0
        while True:
            answer = self.client.streams(ENGINE, self._last_stream, PAGE)
            streams += answer["streams"]
            self._last_stream = max(self._last_stream, answer["next"])
            if not answer["streams"]:
                if len(streams) >= ended or time.monotonic() > until:
                    return streams
                time.sleep(0.1)

    def last_decisions(self) -> list[dict[str, Any]]:
        """The newest few decisions."""
        decisions: list[dict[str, Any]] = self.client.journal(SHOWN, ENGINE)["decisions"]
        return decisions

    def decisions(self, mode: str, since_ns: int) -> int:
        """How many decisions were taken in `mode` since `since_ns`."""
        return sum(each["mode"] == mode for each in self.decided_since(since_ns))

    def decided_since(self, since_ns: int) -> Iterator[Mapping[str, Any]]:
        """The decisions taken since `since_ns`, newest first."""
        return (each for each in self._newest_decisions() if each["mono_ns"] >= since_ns)

    def set_mode(self, mode: str) -> None:
        """Change the mode."""
        self.client.set_mode(mode, "the demonstration's next phase")

    def _newest_decisions(self) -> Iterator[Mapping[str, Any]]:
        before: int | None = None
        while page := self.client.journal(PAGE, ENGINE, before)["decisions"]:
            yield from page
            before = page[-1]["id"]


def start_sitsd(
    rig: Rig, stage: Stage, slo: Slo, mode: str = "observe", state_dir: Path | None = None
) -> Sits:
    """Start sitsd; returns when it follows the engine and has its admin socket."""
    policy = rig.run_dir / "policy.toml"
    policy.write_text(policy_text(rig, stage, slo, free_port(), mode, state_dir))
    daemon = rig.start(
        "sitsd",
        [str(Path(sys.executable).with_name("sitsd")), "--policy", str(policy)],
        rig.cores.agent,
        rig.groups.procs("agent"),
        ends_by=signal.SIGTERM,
    )
    client = AgentClient(rig.run_dir / "admin.sock")
    until = time.monotonic() + READY_WITHIN_S
    missing = "it does not answer"
    while missing:
        if daemon.poll() is not None:
            raise RigError(f"sitsd ended at once:\n{rig.failure('sitsd')}")
        if time.monotonic() > until:
            raise RigError(f"sitsd is not ready after {READY_WITHIN_S:g} s: {missing}")
        time.sleep(0.1)
        try:
            missing = _missing(client.status())
        except ClientError:
            continue
    return Sits(client, daemon)


_NEEDED: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "its kernel programs do not follow streams": lambda s: s["kernel"]["follows_streams"],
    "its controller does not run": lambda s: s["controller"]["alive"],
    "it has not found the engine": lambda s: s["engines"][0]["found"],
    "it does not reach the engine's admin socket": lambda s: (
        s["engines"][0]["admin"]["state"] == "connected"
    ),
}


def _missing(status: Mapping[str, Any]) -> str:
    """What is not there yet, with what sitsd says about it; empty when all is."""
    for what, holds in _NEEDED.items():
        if not holds(status):
            return "; ".join([what, *status["problems"]])
    return ""


def _quoted(value: object) -> str:
    # a JSON string is a TOML basic string as long as it is ASCII
    return json.dumps(str(value))
