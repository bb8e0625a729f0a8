"""The tier without BTF: compiled in the confined unit's sandbox, and held against the other tier.

The unit runs with bcc.conf on a kernel whose BTF it does not see, bcc and the headers lie where
Debian's packages put them. What it compiled, which takes an emulated machine minutes, stays pinned
when it is stopped: the tests after that have both tiers watch one load. Needs what `--bcc` brings.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.bcc_loader import load_bcc
from bpf.bcc_tier import PROGRAMS
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
from tests.vm.guest.installed import (
    PATIENCE_S,
    PINS,
    POLICY,
    TIMEOUTS,
    install,
    patient_unit,
    pins,
    run,
    scrape,
    systemctl,
    traces,
    typed,
    wait_for_agent,
)
from tests.vm.guest.test_bpf import MAX_TARGETS, counters, lossy_loopback, serving, watch

BTF_PINS = Path("/sys/fs/bpf/sits-btf")
COMPILE_S = 1500
"""An emulated machine on a busy host takes longer than any that the unit's own bound is for."""

SHARED = Path("/opt/sits/share/bcc.conf")
DROP_IN = Path("/etc/systemd/system/sitsd.service.d/bcc.conf")
HIDDEN = TIMEOUTS.with_name("hidden.conf")
WAITS = re.compile(
    r'^sits_run_queue_wait_seconds_total\{engine="chat",holder="self"\} (\S+)$', re.MULTILINE
)
TEXT = f"""
[agent]
max_targets = {MAX_TARGETS - 1}
[engines.chat]
cgroup = "/tests/engine"
slo = {{ gap_ms = 70 }}
"""
HELD_S = 2.0
LONG = [buffer(1 << 20), send(CHUNKED_HEAD), send(chunk(event(1) * 5) * 2_000), send(LAST)]


@pytest.fixture(scope="module")
def unit() -> Iterator[None]:
    """The package with bcc.conf as its text says, running on a kernel whose BTF it does not see."""
    if not brought.is_there():
        pytest.skip(brought.MISSING)
    assert traces() == set()
    with patient_unit():
        try:
            install("sits")
            POLICY.write_text(TEXT)
            HIDDEN.write_text(
                f"[Service]\nInaccessiblePaths=/sys/kernel/btf\nTimeoutStartSec={COMPILE_S}\n"
            )
            with brought.in_debians_places():
                for line in re.findall(r"^#   (.*)$", SHARED.read_text(), re.MULTILINE):
                    typed(line, patience_s=COMPILE_S)
                assert DROP_IN.exists()
                wait_for_agent()
            yield
        finally:
            run("dpkg", "--purge", "sits")
            HIDDEN.unlink(missing_ok=True)
            DROP_IN.unlink(missing_ok=True)
            if DROP_IN.parent.is_dir():
                DROP_IN.parent.rmdir()
            run("systemctl", "daemon-reload")
    assert traces() == set()


@pytest.fixture(scope="module")
def tiers(unit: None, lib: Libbpf, features: Features) -> Iterator[dict[str, Programs]]:
    """Both tiers, each with its own pins: the unit's, which is stopped, and the other beside it."""
    systemctl("stop", "sitsd")
    loaded = {}
    try:
        loaded["bcc"] = load_bcc(lib, Plan(features, MAX_TARGETS, PINS))
        loaded["btf"] = load(lib, Plan(features, MAX_TARGETS, BTF_PINS))
        yield loaded
    finally:
        for each in loaded.values():
            each.close()
        unload(BTF_PINS)


def waited_s() -> float:
    """For how long the engine's tasks waited for each other, as the unit tells it."""
    found = WAITS.search(scrape())
    return float(found[1]) if found else 0.0


def waits(programs: Programs) -> Histogram:
    row = TargetTable(programs).rows["engine"]
    fd = programs.maps["wait_histograms"]
    return HistogramReader(programs.lib, fd, programs.cpus).read(row)


def test_bcc_compiles_in_the_units_sandbox_and_its_process_ends(unit: None) -> None:
    said = run("journalctl", "-u", "sitsd", "-n", "40").stdout
    assert 'sits_kernel_tier{tier="bcc"} 1.0' in scrape(), said
    assert {f"links/{program}" for program in PROGRAMS} <= pins()
    assert "bpf.bcc_tier" not in run("ps", "-eo", "args").stdout
    doctor = run("sitsctl", "doctor", "--json").stdout
    assert "bcc: programs compiled against this kernel's headers" in doctor


def test_waits_of_an_engine_are_in_the_metrics(
    unit: None, make_cgroup: MakeCgroup, burn: Burn
) -> None:
    group = make_cgroup("engine")
    burn(group)
    burn(group)
    wait_until(lambda: waited_s() > 1, "a second of waiting", PATIENCE_S)


def test_what_is_pinned_is_adopted(tiers: dict[str, Programs]) -> None:
    assert tiers["bcc"].how == "adopted"
    assert {f"links/{program}" for program in PROGRAMS} <= pins()


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
    # both took the time of the same switch, one after the other: emulated and on a busy host that
    # can be a millisecond, and a short wait then falls some slots further
    apart = [abs(a - b) for a, b in zip(accumulated(one), accumulated(two), strict=True)]
    assert max(apart) <= 0.1 * by_btf.waits + 5
    print(f"waits {by_btf.waits} and {by_bcc.waits}, in all {sum(apart)} slots apart")


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


def test_without_headers_it_is_refused_with_what_is_missing_and_leaves_no_pin(
    lib: Libbpf, features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Path("/sys/fs/bpf/sits-none")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(LibbpfError, match=r"has no include/linux/sched\.h: no kernel headers"):
        load_bcc(lib, Plan(features, MAX_TARGETS, nowhere))
    assert not list(nowhere.glob("*/*"))
    unload(nowhere)


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
