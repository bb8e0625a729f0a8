"""Both tiers on one kernel and one load: what bcc compiled counts what the other programs count.

Needs bcc and this kernel's headers, which `--bcc` brings along.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.bcc_loader import load_bcc
from bpf.features import Features
from bpf.histogram import Histogram
from bpf.layout import TargetKind
from bpf.libbpf import Libbpf, LibbpfError
from bpf.loader import Plan, Programs, load, unload
from bpf.readers import HistogramReader
from bpf.targets import Target, TargetTable
from bpf.tiers import choose_tier
from tests.kernel.bpf.conftest import server as scripted
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    Client,
    buffer,
    chunk,
    event,
    post,
    send,
    sent_by,
)
from tests.kernel.conftest import TwinGroup
from tests.vm.guest import brought
from tests.vm.guest.conftest import Burn, MakeCgroup, wait_until
from tests.vm.guest.test_bpf import MAX_TARGETS, counters, lossy_loopback, serving, watch

PINS = {"btf": Path("/sys/fs/bpf/sits-btf"), "bcc": Path("/sys/fs/bpf/sits-bcc")}
COMPILE_S = 900.0
"""An emulated machine takes longer than any that the tier's own bound is for."""

HELD_S = 2.0
LONG = [buffer(1 << 20), send(CHUNKED_HEAD), send(chunk(event(1) * 5) * 2_000), send(LAST)]


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Where bcc, its libraries and the headers are; skips where they are not."""
    if not brought.is_there():
        pytest.skip(brought.MISSING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(brought.LIBRARIES))
        patch.setenv("BCC_KERNEL_SOURCE", str(brought.HEADERS))
        patch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{brought.PACKAGES}")
        patch.setattr("bpf.bcc_loader.LOAD_S", COMPILE_S)
        yield


@pytest.fixture(scope="module")
def tiers(environment: None, lib: Libbpf, features: Features) -> Iterator[dict[str, Programs]]:
    """Both tiers, each with its own pins."""
    loaded = {}
    try:
        loaded["bcc"] = load_bcc(lib, Plan(features, MAX_TARGETS, PINS["bcc"]))
        loaded["btf"] = load(lib, Plan(features, MAX_TARGETS, PINS["btf"]))
        yield loaded
    finally:
        for each in loaded.values():
            each.close()
        for pins in PINS.values():
            unload(pins)


def waits(programs: Programs) -> Histogram:
    row = TargetTable(programs).rows["engine"]
    fd = programs.maps["wait_histograms"]
    return HistogramReader(programs.lib, fd, programs.cpus).read(row)


def test_the_process_that_compiled_is_gone_and_everything_is_pinned(
    tiers: dict[str, Programs],
) -> None:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "bpf.bcc_tier" not in listed.stdout
    assert len(list((PINS["bcc"] / "links").iterdir())) == 6


def test_both_tiers_count_the_same_waits_for_the_cpu(
    tiers: dict[str, Programs], make_cgroup: MakeCgroup, burn: Burn
) -> None:
    engine, other = make_cgroup("engine"), make_cgroup("other")
    for each in tiers.values():
        target = Target("engine", TargetKind.ENGINE, cpu_cgroups=frozenset({engine.stat().st_ino}))
        assert TargetTable(each).apply([target]) == []
    burning = [burn(engine), burn(engine), burn(other)]
    try:
        time.sleep(8)
    finally:
        for process in burning:
            process.kill()
            process.wait()
    by_btf, by_bcc = counters(tiers["btf"]), counters(tiers["bcc"])
    assert by_btf.waits > 100
    for name in ("waits", "wait_ns", "run_ns", "wait_self_ns", "wait_other_ns", "involuntary"):
        one, two = getattr(by_btf, name), getattr(by_bcc, name)
        assert two == pytest.approx(one, rel=0.03, abs=5), name
    one, two = waits(tiers["btf"]), waits(tiers["bcc"])
    assert sum(two.slots) == pytest.approx(sum(one.slots), rel=0.03, abs=5)
    # both took the time of the same switch, some µs apart: a count may fall into the next slot
    moved = sum(abs(a - b) for a, b in zip(accumulated(one), accumulated(two), strict=True))
    assert moved <= 0.1 * sum(one.slots) + 10
    print(f"waits {by_btf.waits} and {by_bcc.waits}, {moved} of them a slot apart")


def accumulated(histogram: Histogram) -> list[int]:
    sums, total = [], 0
    for count in histogram.slots:
        total += count
        sums.append(total)
    return sums


def test_both_tiers_count_the_same_retransmits(
    tiers: dict[str, Programs], make_cgroup: MakeCgroup, streaming: None
) -> None:
    with serving(make_cgroup("server")) as server:
        watch(tiers["btf"], server.cgroup, server.port)
        ids = frozenset({server.cgroup.stat().st_ino})
        target = Target(
            "engine",
            TargetKind.ENGINE,
            cpu_cgroups=ids,
            stream_cgroups=ids,
            ports=frozenset({server.port}),
        )
        assert TargetTable(tiers["bcc"]).apply([target]) == []
        before = {name: counters(each) for name, each in tiers.items()}
        with lossy_loopback(10):
            assert server.stream(200, 200) == [200, 200]
        after = {name: counters(each) for name, each in tiers.items()}
        sent = {name: after[name].retransmits - before[name].retransmits for name in tiers}
        tiers["btf"].detach(server.cgroup.stat().st_ino)
    assert sent["btf"] > 0
    assert sent["bcc"] == pytest.approx(sent["btf"], abs=2)


def test_bytes_that_a_client_does_not_take_wait_for_as_long_as_it_does_not(
    tiers: dict[str, Programs], make_cgroup: MakeCgroup
) -> None:
    cgroup = make_cgroup("slow")
    with scripted(TwinGroup(cgroup, cgroup), "127.0.0.1") as (_, (port,)):
        ids = frozenset({cgroup.stat().st_ino})
        target = Target("engine", TargetKind.ENGINE, stream_cgroups=ids, ports=frozenset({port}))
        assert TargetTable(tiers["bcc"]).apply([target]) == []
        before = counters(tiers["bcc"])

        def waiting() -> int:
            seen = counters(tiers["bcc"]).since(before)
            return seen.blocked_begun - seen.blocked_ended

        with Client.to(port, receive_buffer=4_096) as client:
            began = time.monotonic()
            client.write(post(LONG))
            wait_until(lambda: waiting() == 1, "bytes that wait")
            time.sleep(HELD_S)
            assert waiting() == 1
            client.read(len(sent_by(LONG)))
            wait_until(lambda: waiting() == 0, "the end of the wait")
            took_s = time.monotonic() - began
    assert HELD_S <= counters(tiers["bcc"]).since(before).blocked_ns / 1e9 <= took_s


def test_what_is_pinned_is_adopted(
    tiers: dict[str, Programs], lib: Libbpf, features: Features
) -> None:
    again = load_bcc(lib, Plan(features, MAX_TARGETS, PINS["bcc"]))
    assert again.how == "adopted"
    again.close()


def test_without_headers_it_is_refused_with_what_is_missing_and_leaves_no_pin(
    environment: None, lib: Libbpf, features: Features, tmp_path: Path
) -> None:
    pins = Path("/sys/fs/bpf/sits-none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
        with pytest.raises(LibbpfError, match=r"has no include/linux/sched\.h: no kernel headers"):
            load_bcc(lib, Plan(features, MAX_TARGETS, pins))
    assert not list(pins.glob("*/*"))
    unload(pins)


def test_a_kernel_whose_btf_is_hidden_gets_the_bcc_tier() -> None:
    """As on a kernel that was built without it: another process sees an empty directory there."""
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none /sys/kernel/btf && {ASK}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert said.stdout.split() == ["False", "bcc"]


ASK = f"""{sys.executable} -c '
from bpf.features import open_libbpf, probe
from bpf.tiers import choose_tier
found = probe(open_libbpf())
print(found.btf, choose_tier(found, "auto"))'"""


def test_the_policy_may_want_either_tier(features: Features) -> None:
    assert choose_tier(features, "auto") == "btf"
    assert choose_tier(features, "bcc") == "bcc"
    assert choose_tier(features, "btf") == "btf"
