"""The project's BPF programs on this kernel: loaded, attached, pinned, and counting right."""

import http.client
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bpf.features import Features
from bpf.layout import Counters, EndReason, Event, EventKind, Health, TargetKind, parse_event
from bpf.libbpf import Libbpf, Ring
from bpf.loader import OBJECT_DIR, Plan, Programs, load, unload
from bpf.readers import CounterReader, Culprit, HistogramReader, read_culprits
from bpf.targets import Target, TargetTable
from tests.vm.guest.conftest import Burn, MakeCgroup, wait_until

PIN_DIR = Path("/sys/fs/bpf/sits-test")
MAX_TARGETS = 8

Load = Callable[..., Programs]


@dataclass(frozen=True, slots=True)
class Server:
    """A streaming server in a cgroup of its own."""

    port: int
    cgroup: Path

    def stream(self, *counts: int) -> list[int]:
        """Ask for streams of so many events on one connection; return how many came of each."""
        with self.connection() as client:
            return [ask(client, count) for count in counts]

    def connection(self) -> "closing[http.client.HTTPConnection]":
        """Return a connection that closes with its context."""
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60))


def ask(client: http.client.HTTPConnection, events: int) -> int:
    """Ask for a stream of so many events; return how many came."""
    client.request("POST", f"/{events}", body=b"{}")
    return client.getresponse().read().count(b"data:")


@pytest.fixture
def start(lib: Libbpf, features: Features) -> Iterator[Load]:
    """Load the programs with pins, as often as a test likes; nothing of them stays."""
    loaded: list[Programs] = []

    def load_once(objects: Path = OBJECT_DIR, max_targets: int = MAX_TARGETS) -> Programs:
        loaded.append(load(lib, Plan(features, max_targets, PIN_DIR), objects))
        return loaded[-1]

    yield load_once
    for one in loaded:
        one.close()
    unload(PIN_DIR)


@pytest.fixture
def server(make_cgroup: MakeCgroup) -> Iterator[Server]:
    """A server that streams events, alone in its cgroup."""
    with serving(make_cgroup("engine")) as started:
        yield started


@contextmanager
def serving(cgroup: Path, *arguments: str) -> Iterator[Server]:
    """Run the streaming server in a cgroup."""
    join = 'echo $$ >"$1"; shift; exec "$@"'
    module = [sys.executable, "-m", "tests.vm.guest.sse_server", *arguments]
    with subprocess.Popen(
        ["sh", "-c", join, "join", cgroup / "cgroup.procs", *module], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline()), cgroup)
        finally:
            process.kill()


def watch(programs: Programs, cgroup: Path, port: int | None = None) -> None:
    """Make a cgroup the only target; with a port also for its streams."""
    ids = frozenset({cgroup.stat().st_ino})
    target = Target("engine", TargetKind.ENGINE, cpu_cgroups=ids)
    if port is not None:
        target = replace(target, stream_cgroups=ids, ports=frozenset({port}))
        programs.attach(cgroup, cgroup.stat().st_ino)
    assert TargetTable(programs).apply([target]) == []


def counters(programs: Programs) -> Counters:
    """Return the target's counters."""
    row = TargetTable(programs).rows["engine"]
    with closing(reader(programs)) as read:
        return read.counters(row)


def health(programs: Programs) -> Health:
    """Return how often our own limits were hit."""
    with closing(reader(programs)) as read:
        return read.health()


def reader(programs: Programs) -> CounterReader:
    """Map the counters of loaded programs."""
    maps, plan = programs.maps, programs.plan
    return CounterReader(maps["counters"], maps["health"], plan.max_targets, programs.cpus)


@contextmanager
def lossy_loopback(every: int) -> Iterator[None]:
    """Lose every n-th packet that arrives on the loopback device."""
    # On arrival: a packet lost on the way out is told to the sender, who sends it again unasked.
    drop = ("action", "pass", "random", "determ", "drop", str(every))
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "clsact"], check=True)
    try:
        subprocess.run(
            ["tc", "filter", "add", "dev", "lo", "ingress", "matchall", *drop], check=True
        )
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "clsact"], check=True)


def test_what_the_kernel_allows_is_found(features: Features) -> None:
    assert features.can_trace
    assert not features.cpu_on_v1
    assert features.missing_capabilities == ()


def test_programs_load_and_are_pinned(start: Load, features: Features) -> None:
    programs = start()
    assert programs.how == "fresh"
    assert programs.follows_streams == features.can_stream
    assert {path.name for path in (PIN_DIR / "maps").iterdir()} == programs.maps.keys()
    assert {path.name for path in (PIN_DIR / "programs").iterdir()} == programs.programs.keys()


def test_unloading_leaves_no_pin(start: Load) -> None:
    start()
    unload(PIN_DIR)
    assert not PIN_DIR.exists()


def test_waiting_for_the_cpu_is_counted_and_blamed(
    start: Load, make_cgroup: MakeCgroup, burn: Burn
) -> None:
    engine, neighbour = make_cgroup("engine"), make_cgroup("neighbour")
    programs = start()
    watch(programs, engine)
    burn(engine)
    burn(neighbour)

    def blamed() -> list[Culprit]:
        # The test's own process takes the CPU too, now and then.
        found = read_culprits(programs.map("culprits"))
        return [culprit for culprit in found if culprit.cgroup == neighbour.stat().st_ino]

    wait_until(lambda: blamed() != [], "the neighbour named a culprit")
    first = counters(programs)
    wait_until(lambda: counters(programs).waits > first.waits + 10, "more waits")
    later = counters(programs).since(first)
    assert later.wait_other_ns > 0
    assert later.wait_ns >= later.wait_other_ns
    assert later.run_ns > 0
    assert later.involuntary > 0
    (culprit,) = blamed()
    assert culprit.command in {"sh", "taskset"}
    assert culprit.wait_ns > 0
    assert health(programs) == Health()


def test_every_wait_is_in_the_histogram(
    start: Load, make_cgroup: MakeCgroup, burn: Burn, lib: Libbpf
) -> None:
    engine = make_cgroup("engine")
    programs = start()
    watch(programs, engine)
    burners = [burn(engine), burn(engine)]
    wait_until(lambda: counters(programs).waits > 10, "waits")
    for burner in burners:
        burner.kill()
        burner.wait()
    waits = HistogramReader(lib, programs.maps["wait_histograms"], programs.cpus)
    seen = counters(programs)
    histogram = waits.read(TargetTable(programs).rows["engine"])
    assert (histogram.count, histogram.sum_ns) == (seen.waits, seen.wait_ns)


def test_who_is_not_watched_is_not_counted(
    start: Load, make_cgroup: MakeCgroup, burn: Burn
) -> None:
    engine, neighbour = make_cgroup("engine"), make_cgroup("neighbour")
    programs = start()
    watch(programs, engine)
    burn(neighbour)
    time.sleep(1)
    assert counters(programs) == Counters()


def test_counting_goes_on_without_us_and_pins_are_adopted(
    start: Load, make_cgroup: MakeCgroup, burn: Burn
) -> None:
    engine = make_cgroup("engine")
    burn(engine)
    burn(engine)
    programs = start()
    watch(programs, engine)
    wait_until(lambda: counters(programs).waits > 5, "waits")
    programs.close()
    # Nothing reads the maps now; the pins alone keep the programs.
    adopted = start()
    assert adopted.how == "adopted"
    before = counters(adopted)
    assert before.waits > 5
    wait_until(lambda: counters(adopted).waits > before.waits, "waits after adoption")


def test_other_programs_of_the_same_layout_keep_the_counters(
    start: Load, make_cgroup: MakeCgroup, burn: Burn, tmp_path: Path
) -> None:
    engine = make_cgroup("engine")
    burn(engine)
    burn(engine)
    programs = start()
    watch(programs, engine)
    wait_until(lambda: counters(programs).waits > 5, "waits")
    programs.close()
    shutil.copytree(OBJECT_DIR, tmp_path / "objects")
    for path in (tmp_path / "objects").iterdir():
        # Bytes after the end of an ELF file mean nothing to it, but the file is another.
        path.write_bytes(path.read_bytes() + bytes(8))
    upgraded = start(tmp_path / "objects")
    assert upgraded.how == "kept"
    before = counters(upgraded)
    assert before.waits > 5
    wait_until(lambda: counters(upgraded).waits > before.waits, "waits after the upgrade")


def test_pins_of_another_shape_are_replaced(start: Load) -> None:
    start().close()
    assert start(max_targets=MAX_TARGETS * 2).how == "fresh"


@pytest.mark.usefixtures("streaming")
def test_a_stream_is_counted_exactly(start: Load, server: Server) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    assert server.stream(7) == [7]
    wait_until(lambda: counters(programs).ends_complete == 1, "the stream's end")
    seen = counters(programs)
    assert (seen.requests, seen.responses, seen.errors) == (1, 1, 0)
    assert (seen.first_chunks, seen.chunks, seen.gaps) == (1, 7, 6)
    assert seen.body_bytes == sum(len(b"data: %d\n\n" % number) for number in range(7))
    assert (seen.ends_early, seen.ends_unstarted) == (0, 0)
    assert seen.ttft_sum_ns > 0
    assert seen.gap_sum_ns > 0
    assert health(programs) == Health()


@pytest.mark.usefixtures("streaming")
def test_streams_of_one_connection_are_counted_apart(
    start: Load, server: Server, lib: Libbpf
) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    events: list[Event] = []
    with closing(
        Ring(lib, programs.maps["events"], lambda raw: events.append(parse_event(raw)))
    ) as ring:
        assert server.stream(3, 5) == [3, 5]
        wait_until(lambda: counters(programs).ends_complete == 2, "the streams' ends")
        ring.consume()
    kinds = [EventKind.START, EventKind.FIRST, EventKind.END]
    assert [event.kind for event in events] == kinds * 2
    assert [event.stream.number for event in events] == [1, 1, 1, 2, 2, 2]
    assert len({event.stream.connection for event in events}) == 1
    assert [events[0].head.split(b" ")[:2], events[3].head.split(b" ")[:2]] == [
        [b"POST", b"/3"],
        [b"POST", b"/5"],
    ]
    assert [(end.stream.chunks, end.reason) for end in (events[2], events[5])] == [
        (3, EndReason.COMPLETE),
        (5, EndReason.COMPLETE),
    ]


@pytest.mark.usefixtures("streaming")
def test_a_start_shows_what_stands_far_into_the_head(
    start: Load, server: Server, lib: Libbpf
) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    events: list[Event] = []
    with closing(
        Ring(lib, programs.maps["events"], lambda raw: events.append(parse_event(raw)))
    ) as ring:
        with server.connection() as client:
            headers = {"x-padding": "p" * 700, "traceparent": "here"}
            client.request("POST", "/2", body=b"{}", headers=headers)
            assert client.getresponse().read().count(b"data:") == 2
        wait_until(lambda: counters(programs).ends_complete == 1, "the stream's end")
        ring.consume()
    head = events[0].head
    assert head.index(b"\r\ntraceparent: here\r\n") > 700


@pytest.mark.usefixtures("streaming")
def test_retransmits_are_counted_and_chunks_not_twice(start: Load, server: Server) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    with server.connection() as client:
        assert ask(client, 1) == 1
        with lossy_loopback(every=7):
            assert ask(client, 100) == 100
    wait_until(lambda: counters(programs).ends_complete == 2, "the streams' ends")
    seen = counters(programs)
    assert seen.retransmits > 0
    assert (seen.requests, seen.chunks, seen.gaps) == (2, 101, 99)


@pytest.mark.usefixtures("streaming")
def test_an_attached_cgroup_is_adopted_and_detached(start: Load, server: Server) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    programs.close()
    adopted = start()
    assert adopted.attached_cgroups() == {server.cgroup.stat().st_ino}
    assert server.stream(2) == [2]
    wait_until(lambda: counters(adopted).chunks == 2, "a stream after adoption")
    adopted.detach(server.cgroup.stat().st_ino)
    assert server.stream(2) == [2]
    assert counters(adopted).chunks == 2


@pytest.mark.usefixtures("streaming")
def test_a_request_that_completes_the_handshake_is_counted_like_the_next(
    start: Load, make_cgroup: MakeCgroup
) -> None:
    programs = start()
    with serving(make_cgroup("engine"), "--defer") as server:
        watch(programs, server.cgroup, server.port)
        assert server.stream(3, 4) == [3, 4]
        wait_until(lambda: counters(programs).ends_complete == 2, "the second stream's end")
    seen = counters(programs)
    assert (seen.requests, seen.responses, seen.chunks, seen.events) == (2, 2, 7, 7)
    assert health(programs).lost_streams == 0
