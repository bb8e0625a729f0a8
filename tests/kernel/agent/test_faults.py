"""What is missing, broken or hostile: each is said plainly, and the rest goes on working."""

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from agent.client import RefusedError
from bpf.libbpf import Libbpf
from controller.engines.page import MAGIC
from tests.engines.reference_process import Client
from tests.kernel.conftest import MakeGroup, TwinGroup

from .conftest import Node
from .groups import burning, favoured, inside, limits
from .peers import PEERS, peer_at
from .rig import Site, Sitsd
from .traffic import at_start, engine_in, knobs, load, long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel

NO_CAPABILITIES: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def without(path: Path) -> tuple[str, ...]:
    """Run where `path` is an empty file or directory."""
    mount = "mount -t tmpfs none" if path.is_dir() else "mount --bind /dev/null"
    return ("unshare", "-m", "/bin/sh", "-c", f'{mount} "$0" && exec "$@"', str(path))


def library(lib: Libbpf) -> Path:
    """The file libbpf was loaded from."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in maps if "/libbpf.so" in line)


def says(sitsd: Sitsd, *texts: str) -> None:
    """Wait until the problems tell of each of these."""
    sitsd.status(
        lambda status: all(any(text in each for each in status["problems"]) for text in texts)
    )


def retunes_without_the_kernel(sitsd: Sitsd, node: Node) -> None:
    """The engine's own page is enough to find its batch too large for the SLO."""
    sitsd.engine(lambda engine: engine["admin"]["state"] == "connected")
    with favoured(node.group), long_beside_short(node.engine):
        becomes(lambda: knobs(node.engine)["owner"] == "sits")


def measures_nothing(sitsd: Sitsd, why: str) -> None:
    """It says why, at the health check too, and everything answers."""
    says(sitsd, f"nothing is measured: {why}")
    status, text = sitsd.get("/healthz")
    assert status == 503
    assert any(why in each for each in json.loads(text)["problems"])
    assert sitsd.metric("sits_chunks_total", engine="chat") == 0
    becomes(lambda: sitsd.metric("sits_engine_up", engine="chat") == 1)
    assert sitsd.api.status()["kernel"]["loaded"] == "none"
    assert not all(each["ok"] for each in sitsd.api.doctor()["findings"])
    assert "Traceback" not in sitsd.log


def test_without_privileges_it_retunes_from_the_engines_page(
    node: Node, site: Site, gap_ms: float
) -> None:
    site.write(node.targets(gap_ms=gap_ms), "control")
    with site.sitsd(NO_CAPABILITIES) as sitsd:
        measures_nothing(sitsd, "this process lacks CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF")
        retunes_without_the_kernel(sitsd, node)
    assert at_start(node.engine)


def test_without_btf_everything_else_answers(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd(without(Path("/sys/kernel/btf"))) as sitsd:
        measures_nothing(sitsd, "the kernel has no BTF")
        assert sitsd.end() == 0


def test_without_libbpf_everything_else_answers(node: Node, site: Site, lib: Libbpf) -> None:
    site.write(node.targets())
    with site.sitsd(without(library(lib))) as sitsd:
        measures_nothing(sitsd, "libbpf.so.1 was not found")
        assert sitsd.end() == 0


def test_without_a_bpf_file_system_everything_but_pins_works(node: Node, site: Site) -> None:
    site.pin_dir = site.directory / "pins"
    site.write(node.targets())
    with site.sitsd() as sitsd:
        says(sitsd, f"{site.pin_dir} is not on a BPF file system")
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(2)
        becomes(lambda: sitsd.metric("sits_chunks_total", engine="chat") == traffic.chunks)
    assert not site.pin_dir.exists()


def test_a_journal_that_can_not_be_written_costs_only_the_journal(node: Node, site: Site) -> None:
    site.write(node.targets())
    state = site.directory / "state"
    state.mkdir()
    (state / "journal.db").mkdir()
    with site.sitsd() as sitsd:
        sitsd.following()
        status = sitsd.status(lambda status: status["journal"]["dropped"])
        assert "journal.db" in status["journal"]["error"]
        with pytest.raises(RefusedError, match=r"journal\.db"):
            sitsd.api.journal()
        assert sitsd.api.explain("chat")["decisions"] == []


def test_a_journal_locked_by_another_holds_nothing_up(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        with closing(sqlite3.connect(site.directory / "state" / "journal.db")) as other:
            other.execute("begin immediate")
            sitsd.api.set_mode("shadow", "test")
            sitsd.status(lambda status: status["journal"]["dropped"])
            assert sitsd.end() == 0


@contextmanager
def idle_in(group: TwinGroup) -> Iterator[None]:
    """A process that does nothing, in `group`."""
    with subprocess.Popen(inside(group, "sleep", "600")) as process:
        try:
            yield
        finally:
            process.kill()


def test_each_broken_admin_socket_is_told_of_while_the_good_engine_is_served(
    node: Node, site: Site
) -> None:
    targets = node.targets().split("[neighbours.", 1)[0]
    with ExitStack() as stack:
        for (name, (behave, _)), group in zip(PEERS.items(), node.neighbours, strict=False):
            path = site.directory / f"{name}.sock"
            targets += f"[engines.{name}]\n"
            targets += f'cgroup = "/{group.cpu.name}"\nadmin_socket = "{path}"\n'
            stack.enter_context(idle_in(group))
            if behave is not None:
                stack.enter_context(peer_at(path, behave))
        site.write(targets, "control")
        sitsd = stack.enter_context(site.sitsd())
        for name, (_, why) in PEERS.items():
            says(sitsd, f"{name}: ", why)
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(4)
        becomes(lambda: sitsd.metric("sits_chunks_total", engine="chat") == traffic.chunks)
        status = sitsd.api.status()
        states = {each["name"]: each["admin"]["state"] for each in status["engines"]}
        assert states.pop("chat") == "connected"
        assert set(states.values()) <= {"unreachable", "refused"}
        assert all(each["found"] for each in status["engines"])
        assert status["controller"]["restarts"] == 0
        assert status["loop"]["ticks"] > 10
        assert sitsd.end() == 0


def test_a_page_that_is_none_is_told_of_and_figures_come_over_the_socket(
    node: Node, site: Site
) -> None:
    site.write(node.targets())
    with node.engine.page.open("r+b") as page:
        page.write(b"NOT" + MAGIC[3:])
        page.flush()
        try:
            with site.sitsd() as sitsd:
                sitsd.following()
                (event,) = becomes(lambda: sitsd.events("engine_page"))
                assert str(node.engine.page) in event["detail"]["detail"]
                assert "expected SITSPAGE version 1" in event["detail"]["detail"]
                with load(node.engine):
                    sitsd.engine(lambda engine: engine["running"])
        finally:
            page.seek(0)
            page.write(MAGIC)


def test_a_foreign_weight_is_left_alone_and_told_of(node: Node, site: Site) -> None:
    site.write(node.targets(ttft_ms=20, gap_ms=20), "control")
    before = limits(node.group)
    file = next(Path(file) for file in before if file.endswith(("cpu.shares", "cpu.weight")))
    try:
        with site.sitsd() as sitsd, burning(*node.neighbours), load(node.engine):
            becomes(lambda: [each for each in sitsd.decisions() if each["ack"] == "applied"])
            assert limits(node.group) != before
            file.write_text("333")
            event = becomes(lambda: sitsd.events("foreign_write"))[-1]
            assert (event["subject"], event["detail"]["found"]) == (str(file), "333")
            sitsd.engine(lambda engine: engine["cause"] == "neighbour_cpu")
            assert sitsd.end() == 0
            assert file.read_text().strip() == "333"
    finally:
        file.write_text(before[str(file)])


def test_an_engine_that_goes_with_its_cgroup_and_comes_back_is_followed_again(
    make_cgroup: MakeGroup, site: Site, tmp_path: Path
) -> None:
    group, neighbour = make_cgroup("passing"), make_cgroup("beside")
    with ExitStack() as stack:
        first = stack.enter_context(engine_in(group, tmp_path))
        node = Node(first, group, (neighbour,))
        site.write(node.targets(ttft_ms=20, gap_ms=20), "control")
        sitsd = stack.enter_context(site.sitsd())
        sitsd.following()
        with burning(neighbour), load(first):
            sitsd.engine(lambda engine: engine["chunks_per_s"] > 0)
        with ExitStack() as clients:
            for _ in range(3):
                client = clients.enter_context(Client(first))
                wanted = {"prompt": "a", "max_tokens": 2_000, "stream": True, "ignore_eos": True}
                client.send("/v1/completions", wanted)
                client.read_head()
                client.read_chunk()
            first.process.kill()
            first.process.wait()
        group.remove()
        gone = sitsd.engine(lambda engine: not engine["found"])
        assert "no process in cgroup" in gone["detail"]
        assert sitsd.metric("sits_engine_up", engine="chat") == 0
        becomes(lambda: sitsd.metric("sits_streams_active", engine="chat") == 0)
        cut = [s for s in sitsd.api.streams()["streams"] if s["reason"] != "complete"]
        assert len(cut) == 3
        assert {(each["reason"], each["good"]) for each in cut} == {("server_closed", False)}
        becomes(lambda: sitsd.metric("sits_chunks_total", engine="chat") == 0)
        for directory in {group.v2, group.cpu}:
            directory.mkdir()
        second = stack.enter_context(engine_in(group, tmp_path))
        sitsd.following()
        with load(second) as traffic:
            traffic.grows_to(3)
        becomes(lambda: sitsd.metric("sits_chunks_total", engine="chat") == traffic.chunks)
        assert sitsd.api.status()["controller"]["restarts"] == 0
        assert sitsd.end() == 0


def test_a_cgroup_that_is_made_again_has_each_series_once(
    make_cgroup: MakeGroup, site: Site
) -> None:
    parent = make_cgroup("often")
    child = TwinGroup(parent.v2 / "job", parent.cpu / "job")
    site.write(f'[neighbours.often]\ncgroup = "/{parent.cpu.name}/*"\n')
    ids = set()
    with site.sitsd() as sitsd:
        for _ in range(3):
            for directory in {child.v2, child.cpu}:
                directory.mkdir()
            ids.add(child.cpu_id)
            with burning(child):
                becomes(lambda: "often/job" in sitsd.get("/metrics")[1])
                lines = sitsd.get("/metrics")[1].splitlines()
            child.remove()
            becomes(lambda: "often/job" not in sitsd.get("/metrics")[1])
            series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
            assert len(series) == len(set(series))
            assert any('target="often/job"' in each for each in series)
    assert len(ids) == 3
