"""The real controller process over real engines, the test in the agent's place with its journal."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from controller.engines.client import call
from controller.journal import Journal
from controller.policy import policy_to_json
from controller.policy_model import Agent, Engine, Match, Policy
from controller.start import Handles, hand_over, start_controller
from controller.wire import EngineTarget, Message, targets_message
from tests.unit.controller.rig import AgentEnd, Kernel

from .reference_process import Running, reference_engine

PATIENCE_S: Final = 120.0
OVER: Final = "over"


@dataclass
class Fleet:
    """Engines by name, the journal, and the controllers that come and go."""

    engines: dict[str, Running]
    journal: Journal
    directory: Path
    ranks: bool = False
    told: list[Message] = field(default_factory=list)
    _unread: list[Message] = field(default_factory=list)
    agent: AgentEnd | None = None
    process: "subprocess.Popen[bytes] | None" = None
    kernel: Kernel | None = None
    beat: tuple[int, int] | None = None

    def start(self) -> None:
        """A controller, told what the journal has; `told` begins anew."""
        self.told.clear()
        self._unread.clear()
        self.kernel, self.beat = Kernel(9), os.pipe()
        self.process, channel = start_controller()
        self.agent = AgentEnd(channel)
        handles = Handles(self.kernel.counters_fd, self.kernel.health_fd, None, 1)
        hand_over(channel, handles, self.beat[1])
        policy = Policy(agent=Agent(max_targets=8), engines=self._policies())
        send = self.agent.channel.send
        config = {"policy": policy_to_json(policy), "mode": "observe"}
        send({"type": "config", "undo_path": str(self.directory / "undo.json"), **config})
        left = [
            {"id": each.id, "stage": each.stage, "detail": each.detail}
            for each in self.journal.open_changes()
        ]
        send({"type": "unfinished", "changes": left})
        targets = [each.name for each in policy.engines]
        send(
            targets_message(
                [EngineTarget(name, row, None) for row, name in enumerate(targets, 1)], []
            )
        )
        self.until(lambda message: message["type"] == "status" and self.connected(message))

    def connected(self, status: Message) -> bool:
        """Whether it is connected to all the engines that live."""
        states = {
            each["socket"]: each["state"]
            for engine in status["engines"].values()
            for each in engine["admin_sockets"]
        }
        return all(
            states.get(str(each.admin)) == "connected"
            for each in self.engines.values()
            if each.process.poll() is None
        )

    def _policies(self) -> tuple[Engine, ...]:
        engines = list(self.engines.items())
        if self.ranks:
            _, first = engines[0]
            return (Engine("all", Match("port", first.port), self.directory / "e*.sock"),)
        return tuple(Engine(name, Match("port", each.port), each.admin) for name, each in engines)

    def ask(self, change_id: int, lease_s: float = 60, **values: float) -> None:
        assert self.agent is not None
        self.agent.channel.send(
            {
                "type": "by_hand",
                "id": change_id,
                "engines": [each.name for each in self._policies()],
                "values": values,
                "lease_ms": int(lease_s * 1e3),
                "reason": "a test",
            }
        )

    def until(
        self, wanted: Callable[[Message], bool], journal: Callable[[Message], bool] = lambda _: True
    ) -> Message:
        """Be the agent until a message is as wanted; returns it. Changes are kept as they come.

        `journal` says whether this one is kept; one that is not stays without an answer.
        """
        assert self.agent is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self._unread += self.agent.channel.receive()
            while self._unread:
                message = self._unread.pop(0)
                self.told.append(message)
                if message["type"] == "change" and journal(message):
                    self.keep(message)
                if wanted(message):
                    return message
            time.sleep(0.001)
        raise AssertionError(f"it did not come; told {[m['type'] for m in self.told[-9:]]}")

    def keep(self, message: Message) -> None:
        """Have a change on disk, and say so."""
        assert self.agent is not None
        why = self.journal.put_change(message["id"], message["stage"], message["detail"])
        if message["wait"]:
            stage = message["stage"]
            answer = {"type": "recorded", "id": message["id"], "stage": stage, "error": why}
            self.agent.channel.send(answer)

    def hears(self, wanted: Callable[[Message], bool]) -> Message:
        """As `until`, of what this controller has said so far too."""
        told = [message for message in self.told if wanted(message)]
        return told[-1] if told else self.until(wanted)

    def result(self, change_id: int) -> Message:
        """What became of a change, by this controller."""
        return self.hears(lambda m: bool(m["type"] == "by_hand" and m["id"] == change_id))

    def kill(self) -> None:
        """kill -9 of the coordinator."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.clean()

    def clean(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None
        if self.agent is not None:
            self.agent.close()
            self.agent = None
        if self.kernel is not None:
            self.kernel.close()
            self.kernel = None
        if self.beat is not None:
            for fd in self.beat:
                os.close(fd)
            self.beat = None

    def state(self, name: str) -> Mapping[str, Any]:
        return call(self.engines[name].admin, "get", 5)

    def values(self, knob: str) -> list[float]:
        """What is in force in the engines that live."""
        return [
            self.state(name)["values"][knob]
            for name, each in self.engines.items()
            if each.process.poll() is None
        ]


@contextmanager
def fleet(directory: Path, count: int, *, ranks: bool = False) -> Iterator[Fleet]:
    """So many reference engines, or ranks of one by name `all`, and no controller yet."""
    with ExitStack() as stack:
        engines = {
            f"e{n}": stack.enter_context(reference_engine(admin=directory / f"e{n}.sock"))
            for n in range(count)
        }
        journal = Journal(directory / "journal.db")
        stack.callback(journal.close)
        made = Fleet(engines, journal, directory, ranks)
        stack.callback(made.clean)
        yield made
