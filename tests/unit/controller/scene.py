"""A loop and an engine's end that go by one virtual clock, over real sockets, pages and files.

One thread: each step lets the engine work and answer, then the loop listen and tick. The engine's
end keeps the contract by the reference engine's own leases, and breaks it where it is told to.
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from bpf.readers import CounterReader
from controller.engines.contract import ContractError, Hello, Knob
from controller.engines.page import EngineNow, PageWriter, Step
from controller.loop import Loop
from controller.policy_model import Controller, Engine, Match, Mode, Policy, Slo
from controller.serving.leases import Leases
from controller.wire import EngineTarget, Message, NeighbourTarget, targets_message

from .rig import AgentEnd, Cgroups, Kernel, actuator_of
from .situations import MS, SECOND

TICK_NS: Final = 20 * MS
LEASE_MS: Final = 500
SLO: Final = Slo(ttft_ms=2000, gap_ms=40)
ROW: Final = 1
KNOBS: Final = {
    "max_running": Knob("max_running", 1, 64, 64, "requests"),
    "max_batched_tokens": Knob("max_batched_tokens", 16, 2048, 2048, "tokens"),
    "max_queued": Knob("max_queued", 1, 1000, 1000, "requests"),
    "ttft_deadline_ms": Knob("ttft_deadline_ms", 0, 600_000, 0, "ms"),
    "prefill_tokens_per_s": Knob("prefill_tokens_per_s", 0, 10_000_000, 0, "tokens/s"),
    "max_deferral_ms": Knob("max_deferral_ms", 0, 3_600_000, 0, "ms"),
}

Figures = Callable[[EngineNow], EngineNow]


class EngineEnd:
    """An engine that computes nothing but keeps time, and its end of the wire.

    What it does wrong is in its attributes: `frozen` (the page is not written), `torn` (the page is
    never whole), `mute` (requests are read and not answered), `times` (each answer is sent so
    often), `garbled` (what it makes of its figures), `by_hand` (values somebody put in force past
    the lease).
    """

    def __init__(self, directory: Path, kernel: Kernel, knobs: Mapping[str, Knob] = KNOBS) -> None:
        self._directory, self._kernel = directory, kernel
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.path = directory / "engine.sock"
        self._listener.bind(str(self.path))
        self._listener.listen(4)
        self._clients: dict[socket.socket, bytes] = {}
        self._instances = 0
        self.frozen = self.torn = self.mute = False
        self.times = 1
        self.garbled: Figures = lambda now: now
        self.stats: Mapping[str, Any] | None = None
        self.by_hand: dict[str, float] = {}
        self.calls: list[tuple[int, Message]] = []
        self.refused: list[str] = []
        self.in_force: list[tuple[int, Mapping[str, float]]] = []
        self._begin(knobs, paged=True)

    def _begin(self, knobs: Mapping[str, Knob], *, paged: bool) -> None:
        self._instances += 1
        self.leases = Leases(knobs, 10_000)
        self.page = PageWriter(self._directory / "engine.page")
        shown = str(self.page.path) if paged else None
        self.hello = Hello("test", "1", f"instance-{self._instances}", 1, knobs, page=shown)
        self.now = EngineNow(kv_total=60_000)
        self.running = self.waiting = 0
        self.prefill_of_step: Callable[[int], int] = lambda _: 0
        self._ends_ns = 0
        self._step = (0, 0, 0)

    def restart(self, knobs: Mapping[str, Knob] = KNOBS, *, paged: bool = True) -> None:
        """End and begin anew, with nothing of before but the socket's path."""
        load = self.running, self.waiting, self.prefill_of_step
        self.hang_up()
        self.page.close()
        self._begin(knobs, paged=paged)
        self.running, self.waiting, self.prefill_of_step = load

    def offer(self, knobs: Mapping[str, Knob]) -> None:
        """Other knobs, without a restart."""
        epoch = self.leases.taken_epoch
        self.leases = Leases(knobs, 10_000)
        self.leases.taken_epoch = epoch
        self.hello = replace(self.hello, knobs=knobs)

    def busy(
        self, running: int = 8, waiting: int = 4, prefill: Callable[[int], int] | None = None
    ) -> None:
        """Work from now on; by default prompts of all lengths arrive, as far as the budget goes."""
        self.running, self.waiting = running, waiting
        self.prefill_of_step = prefill or (lambda step: (step * 397) % 2048 if step % 3 else 0)

    def idle(self) -> None:
        self.running = self.waiting = 0

    @property
    def values(self) -> Mapping[str, float]:
        """What is in force, whoever put it there."""
        return {**self.leases.values, **self.by_hand}

    @property
    def at_start(self) -> bool:
        return self.leases.lease is None and all(
            value == self.hello.knobs[name].start for name, value in self.leases.values.items()
        )

    def work(self, now_ns: int) -> None:
        """Compute until now, and show it."""
        if self.leases.expire(now_ns):
            self.by_hand.clear()
        step = None
        while self.running and self._ends_ns <= now_ns:
            step = self._end_step(self._ends_ns or now_ns)
        if not self.running:
            self._ends_ns = 0
        self._show(now_ns, step)

    def sleep(self, for_ns: int) -> None:
        """The step under way ends so much later."""
        if self._ends_ns:
            self._ends_ns += for_ns

    def serve(self, now_ns: int) -> None:
        """Answer what was asked."""
        with suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                client.setblocking(False)
                self._clients[client] = b""
        for client in list(self._clients):
            try:
                received = client.recv(65_536)
            except BlockingIOError:
                continue
            if not received:
                self._drop(client)
                continue
            *lines, rest = (self._clients[client] + received).split(b"\n")
            self._clients[client] = rest
            for line in lines:
                self._take(client, json.loads(line), now_ns)
        self._show(now_ns, None)

    def send(self, message: Message) -> None:
        """Say something nobody asked for."""
        for client in self._clients:
            client.sendall(json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        for client in list(self._clients):
            self._drop(client)

    def close(self) -> None:
        self.hang_up()
        self._listener.close()
        self.path.unlink()
        self.page.close()

    def asked(self, call: str, since_ns: int = 0) -> list[Message]:
        """The requests of a kind since then."""
        return [each for at, each in self.calls if at >= since_ns and each["call"] == call]

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        client.close()

    def _take(self, client: socket.socket, request: Message, now_ns: int) -> None:
        self.calls.append((now_ns, request))
        if self.mute:
            return
        try:
            answer = {"ok": True, **self._answer(request, now_ns)}
        except ContractError as error:
            self.refused.append(error.code)
            answer = {"ok": False, "error": error.as_dict(), "epoch": self.leases.taken_epoch}
        line = json.dumps({"id": request["id"], **answer}).encode() + b"\n"
        with suppress(OSError):
            client.sendall(line * self.times)

    def _answer(self, request: Message, now_ns: int) -> Mapping[str, Any]:
        leases = self.leases
        match request["call"]:
            case "hello":
                return self.hello.as_dict()
            case "stats":
                return {"now": asdict(self.now) if self.stats is None else self.stats}
            case "set":
                owner, epoch, lease_ms = (request[k] for k in ("owner", "epoch", "lease_ms"))
                leases.set(now_ns, owner, epoch, lease_ms, request["values"])
                leases.apply()
            case "release":
                self.by_hand.clear()
                leases.release(now_ns, request["owner"])
        if not self.in_force or self.in_force[-1][1] != leases.values:
            self.in_force.append((now_ns, dict(leases.values)))
        state = leases.state(now_ns)
        return state | {"values": dict(self.values)}

    def _end_step(self, now_ns: int) -> Step:
        """One step ends and the next begins."""
        index = self.now.steps + 1
        prefill, decode, kv = self._step
        step = Step(index, now_ns, self._takes_ns(), prefill, decode, kv)
        self.now = replace(
            self.now,
            steps=index,
            generated_tokens_total=self.now.generated_tokens_total + decode,
            prompt_tokens_total=self.now.prompt_tokens_total + prefill,
            requests_total=self.now.requests_total + (prefill > 0),
            finished_total=self.now.finished_total + (prefill > 0),
        )
        late = step.step_ns > SLO.gap_ms * 1e6
        self._kernel.count(
            ROW,
            run_ns=step.step_ns,
            chunks=decode,
            gaps=decode,
            gaps_over=decode if late else 0,
            requests=int(prefill > 0),
            first_chunks=int(prefill > 0),
        )
        running = min(self.running, int(self.values["max_running"]))
        room = max(0, int(self.values["max_batched_tokens"]) - running)
        self._step = min(self.prefill_of_step(index), room), running, 500 * running
        self._ends_ns = now_ns + self._takes_ns()
        return step

    def _takes_ns(self) -> int:
        prefill, decode, kv = self._step
        return int((8 + 0.06 * prefill + 0.4 * decode + 0.0005 * kv) * 1e6)

    def _show(self, now_ns: int, step: Step | None) -> None:
        values = self.values
        self.now = replace(
            self.now,
            updated_ns=now_ns if step is not None or self._changed else self.now.updated_ns,
            running=min(self.running, int(values["max_running"])),
            waiting=self.waiting,
            waiting_tokens=300 * self.waiting,
            oldest_arrival_ns=now_ns - 100 * MS if self.waiting else 0,
            kv_used=500 * self.running,
            epoch=self.leases.applied_epoch,
            max_running=int(values["max_running"]),
            max_batched_tokens=int(values["max_batched_tokens"]),
            lease_expiries_total=self.leases.expiries,
        )
        if self.frozen:
            return
        self.page.write(self.garbled(self.now), step)
        if self.torn:
            with self.page.path.open("r+b") as file:
                file.seek(16)
                file.write(b"\x07")

    @property
    def _changed(self) -> bool:
        return self.now.epoch != self.leases.applied_epoch


class Scene:
    """The loop, one engine, two neighbours, and what the loop told the agent."""

    def __init__(self, directory: Path, mode: Mode = "control", slo: Slo = SLO) -> None:
        self.now_ns = 1000 * SECOND
        self.agent = AgentEnd()
        self.cgroups = Cgroups(directory)
        self.cgroups.make("e", "n1", "n2")
        self.kernel = Kernel(4)
        self.engine = EngineEnd(directory, self.kernel)
        self._reader = CounterReader(self.kernel.counters_fd, self.kernel.health_fd, 4, 1)
        policy = Policy(
            mode=mode,
            controller=Controller(lease_ms=LEASE_MS),
            engines=(Engine("e", Match("port", 1), admin_socket=self.engine.path, slo=slo),),
        )
        clock = self._clock
        actuator = actuator_of(self.agent, self.cgroups, clock)
        self.loop = Loop(policy, self.agent.theirs, self._reader, actuator, 2, clock)
        self.loop.take(
            dict(
                targets_message(
                    [EngineTarget("e", ROW, "/e")],
                    [
                        NeighbourTarget(n, 1 + i, f"/{n}", True, 0.1)
                        for i, n in ((1, "n1"), (2, "n2"))
                    ],
                )
            )
        )

    def _clock(self) -> int:
        return self.now_ns

    def step(self, by_ns: int = TICK_NS) -> None:
        self.now_ns += by_ns
        self.engine.work(self.now_ns)
        self.engine.serve(self.now_ns)
        self.loop.listen(0)
        self.loop.tick(self.now_ns)
        self.engine.serve(self.now_ns)
        self.loop.listen(0)
        self.agent.listen()

    def jump(self, by_ns: int) -> None:
        """The clock jumps: nobody ran meanwhile, as in a machine that was suspended."""
        self.engine.sleep(by_ns)
        self.step(by_ns)

    def run(self, seconds: float, by_ns: int = TICK_NS) -> None:
        end_ns = self.now_ns + int(seconds * SECOND)
        while self.now_ns < end_ns:
            self.step(by_ns)

    def until(self, wanted: Callable[[], object], seconds: float = 60) -> float:
        """Step until that is so; how many seconds it took."""
        began_ns = self.now_ns
        while not wanted():
            assert self.now_ns - began_ns < seconds * SECOND, self.agent.told[-5:]
            self.step()
        return (self.now_ns - began_ns) / SECOND

    def held(self) -> bool:
        """Whether a knob is in force under our lease."""
        lease = self.engine.leases.lease
        return lease is not None and lease.owner == "sits" and not self.engine.at_start

    def control(self) -> None:
        """Bring the loop to hold a point that it decided by a model it trusts."""
        self.engine.busy()
        self.until(lambda: self.status()["model"]["trusted"])
        self.until(self.held)
        self.run(5)
        assert self.held()

    def status(self) -> Message:
        """The engine's part of the last status."""
        told = self.agent.of("status")
        found: Message = told[-1]["engines"]["e"] if told else {"model": {"trusted": False}}
        return found

    def events(self, since_ns: int = 0) -> list[str]:
        """The kinds of events told since then."""
        return [each["kind"] for each in self.agent.of("event") if each["mono_ns"] >= since_ns]

    def detail(self, kind: str) -> str:
        """What the last event of a kind says."""
        return str(self.agent.of("event", kind=kind)[-1]["detail"]["detail"])

    def decisions(self, since_ns: int = 0) -> list[Message]:
        """The decisions about knobs since then."""
        return [
            each
            for each in self.agent.of("decision")
            if each["mono_ns"] >= since_ns and each["action"][0]["kind"] == "knob"
        ]

    def acks(self) -> dict[int, str]:
        """What came of each decision."""
        return {each["tag"]: each["ack"] for each in self.agent.of("ack")}

    def close(self) -> None:
        self.loop.stop()
        self.agent.close()
        self.agent.theirs.close()
        self._reader.close()
        self.kernel.close()
        self.engine.close()


@contextmanager
def scene(directory: Path, mode: Mode = "control", slo: Slo = SLO) -> Iterator[Scene]:
    made = Scene(directory, mode, slo)
    try:
        yield made
    finally:
        made.close()
