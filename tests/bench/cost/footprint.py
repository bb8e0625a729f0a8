"""What `sitsd` and its controller take: memory, CPU without and with streams, time to load.

The engine only keeps time (tests/bench/pacer.py), the client only reads, so that both processes
find a machine that is not busy. Windows without and with 100 streams alternate in one run of sitsd.
"""

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from bpf.bcc_loader import bcc_problem, load_bcc
from bpf.libbpf import LibbpfError
from bpf.loader import Plan, load, unload
from tests.bench.ground import Ground, ground, private_bpffs
from tests.kernel.agent.rig import Site, Sitsd

from .extent import Extent
from .figures import Figure, Found, alternate
from .processes import agent_and_controller, cpu_ns, own_mb, rss_mb
from .streaming import connect, paced

STREAMS: Final = 100
GAP_MS: Final = 50
"""Twenty chunks a second each."""

CHUNKS: Final = 100
"""A stream of five seconds: twenty begin and end every second."""

TARGETS: Final = 65
"""As many rows as a policy has that does not say."""

SETTLE_S: Final = 1.5


def measure(extent: Extent) -> Found:
    """The figures `footprint.*`."""
    with ground() as on, private_bpffs() as pins:
        found = _loads(on, pins, extent.rounds)
        with TemporaryDirectory() as directory:
            site = Site(Path(directory), pins / f"sits-{uuid4().hex[:12]}")
            group = on.make_group("footprint")
            try:
                with paced(group, GAP_MS) as port:
                    site.write(f'[engines.chat]\ncgroup = "/{group.cpu.name}"\n', "control", 1000)
                    with site.sitsd() as sitsd:
                        found |= _running(sitsd, port, extent)
            finally:
                site.unload()
    return found


def _running(sitsd: Sitsd, port: int, extent: Extent) -> Found:
    sitsd.engine(lambda engine: engine["found"] and engine["ports"])
    pids = agent_and_controller(sitsd)
    guard = sitsd.guard()
    cpu = alternate(
        extent.rounds,
        {
            "idle": partial(_window, pids, extent.window_s, port, 0),
            "streams": partial(_window, pids, extent.window_s, port, STREAMS),
        },
    )
    memory = [rss_mb([pid]) for pid in pids]
    note = (
        f"sitsd {memory[0]:.1f}, controller {memory[1]:.1f}; their own (USS) {own_mb(pids):.1f}"
        + (f"; the guard beside them {rss_mb([guard.pid]):.1f}" if guard is not None else "")
    )
    return {
        "footprint.rss_mb": Figure(tuple(rss for _, _, rss in cpu["streams"]), note),
        "footprint.cpu_percent_idle": cpu_figure(cpu["idle"], "one engine, no stream"),
        "footprint.cpu_percent_100_streams": cpu_figure(
            cpu["streams"], f"{STREAMS} streams of {1000 // GAP_MS} chunks a second"
        ),
    }


def cpu_figure(windows: list[tuple[float, float, float]], note: str) -> Figure:
    """Both processes together, each of them beside that."""
    agents = Figure(tuple(agent for agent, _, _ in windows))
    controllers = Figure(tuple(controller for _, controller, _ in windows))
    both = tuple(agent + controller for agent, controller, _ in windows)
    return Figure(both, note, {"sitsd": agents, "controller": controllers})


def _window(
    pids: tuple[int, int], seconds: float, port: int, streams: int
) -> tuple[float, float, float]:
    """Per cent of a core of each process in one window, and their memory at its end, in MB."""
    with reading(port, streams):
        time.sleep(SETTLE_S)
        before, begun_ns = [cpu_ns([pid]) for pid in pids], time.monotonic_ns()
        time.sleep(seconds)
        used = [cpu_ns([pid]) - ns for pid, ns in zip(pids, before, strict=True)]
        elapsed_ns = time.monotonic_ns() - begun_ns
        agent, controller = (100 * ns / elapsed_ns for ns in used)
        return agent, controller, rss_mb(pids)


@contextmanager
def reading(port: int, streams: int) -> Iterator[None]:
    """So many streams are under way meanwhile; one that ends is followed by another."""
    stop = threading.Event()
    reader = threading.Thread(target=_read, args=(port, streams, stop))
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def _read(port: int, streams: int, stop: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            selector.register(connect(port, CHUNKS), selectors.EVENT_READ)
        while streams and not stop.is_set():
            for key, _ in selector.select(0.2):
                client = key.fileobj
                assert isinstance(client, socket.socket)
                if not client.recv(65536):
                    selector.unregister(client)
                    client.close()
                    selector.register(connect(port, CHUNKS), selectors.EVENT_READ)
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def _loads(on: Ground, pins: Path, rounds: int) -> Found:
    """Time to load and pin everything anew, by each tier."""
    release = os.uname().release
    problem = bcc_problem(release)
    variants = {"btf": partial(_load_ms, on, pins, bcc=False)}
    if not problem:
        try:
            _load_ms(on, pins, bcc=True)
            variants["bcc"] = partial(_load_ms, on, pins, bcc=True)
        except LibbpfError as error:
            problem = str(error).splitlines()[0]
    runs = alternate(rounds, variants)
    return {
        "footprint.load_ms": Figure(tuple(runs["btf"]), "verified, attached and pinned"),
        "footprint.bcc_load_ms": Figure(tuple(runs.get("bcc", ())), problem),
    }


def _load_ms(on: Ground, pins: Path, *, bcc: bool) -> float:
    place = pins / f"load-{uuid4().hex[:12]}"
    plan = Plan(on.features, TARGETS, place)
    begun_ns = time.monotonic_ns()
    programs = load_bcc(on.lib, plan) if bcc else load(on.lib, plan)
    took_ns = time.monotonic_ns() - begun_ns
    programs.close()
    unload(place)
    return took_ns / 1e6
