import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.features import (
    TRACEPOINTS,
    Features,
    Finding,
    cgroup_mounts,
    findings,
    is_bpffs,
    missing_capabilities,
    notes_waits,
    possible_cpus,
    probe,
    ticks_a_second,
)
from bpf.libbpf import Libbpf

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:5 master:1 - cgroup2 cgroup2 rw
"""
V2_ONLY = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
ALL = Features(
    libbpf=True,
    btf=True,
    missing_capabilities=(),
    task_storage=True,
    socket_storage=True,
    ring_buffer=True,
    loop=True,
    prev_state=True,
    retransmit_error=True,
    sched_info=True,
    tracepoints=frozenset(TRACEPOINTS),
    hz=250,
    cpu_on_v1=False,
    cgroup2=Path("/sys/fs/cgroup"),
)
COARSE = 6  # CLOCK_MONOTONIC_COARSE
NOT_BPFFS = Path("/proc/self")
NET_ADMIN, SYS_ADMIN, PERFMON, BPF = 1 << 12, 1 << 21, 1 << 38, 1 << 39


def without(tracepoint: str) -> frozenset[str]:
    return frozenset(TRACEPOINTS) - {tracepoint}


def status(effective: int) -> str:
    return f"Name:\tsitsd\nCapPrm:\t{2**41 - 1:016x}\nCapEff:\t{effective:016x}\n"


def found(features: Features, pin_dir: Path = NOT_BPFFS) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings(features, pin_dir)}


def test_a_hybrid_machine_has_its_cpu_on_v1_and_streams_on_v2() -> None:
    assert cgroup_mounts(HYBRID) == (Path("/sys/fs/cgroup/unified"), True)


def test_a_v2_machine_has_its_cpu_on_v2() -> None:
    assert cgroup_mounts(V2_ONLY) == (Path("/sys/fs/cgroup"), False)


def test_cpuset_alone_is_not_the_cpu_controller() -> None:
    cpuset = "".join(line for line in HYBRID.splitlines(True) if "cpu,cpuacct" not in line)
    assert cgroup_mounts(cpuset) == (Path("/sys/fs/cgroup/unified"), False)


def test_the_first_v2_mount_counts() -> None:
    again = V2_ONLY.replace("/sys/fs/cgroup", "/mnt/again")
    assert cgroup_mounts(V2_ONLY + again)[0] == Path("/sys/fs/cgroup")


def test_a_mount_point_with_a_space_is_found_under_its_real_name() -> None:
    assert cgroup_mounts(V2_ONLY.replace("/sys/fs/cgroup", r"/mnt/a\040b"))[0] == Path("/mnt/a b")


@pytest.mark.parametrize("text", ["", "\n", "no separator here\n"])
def test_no_mount_is_no_hierarchy(text: str) -> None:
    assert cgroup_mounts(text) == (None, False)


@given(st.integers(0, 2**41 - 1))
def test_exactly_the_capabilities_that_are_not_effective_are_missing(effective: int) -> None:
    wanted = {"CAP_NET_ADMIN": NET_ADMIN, "CAP_PERFMON": PERFMON, "CAP_BPF": BPF}
    lacking = {name for name, bit in wanted.items() if not effective & bit}
    expected = set() if effective & SYS_ADMIN else lacking
    assert set(missing_capabilities(status(effective))) == expected


def test_a_status_without_the_line_has_no_capability() -> None:
    assert len(missing_capabilities("Name:\tsitsd\n")) == 3


def test_with_everything_there_only_the_file_system_can_be_amiss() -> None:
    assert [finding.name for finding in findings(ALL, NOT_BPFFS) if not finding.ok] == ["bpffs"]


@pytest.mark.parametrize(
    ("lacking", "name", "said"),
    [
        ({"libbpf": False}, "libbpf", "libbpf.so.1 was not found"),
        ({"btf": False}, "btf", "/sys/kernel/btf/vmlinux is missing"),
        ({"ring_buffer": False}, "ring buffer", "older than 5.8"),
        ({"task_storage": False}, "task storage", "older than 5.12"),
        ({"sched_info": False}, "scheduler statistics", "without CONFIG_SCHED_INFO"),
        ({"loop": False}, "streams", "bpf_loop"),
        ({"socket_storage": False}, "streams", "socket storage"),
        ({"cgroup2": None}, "cgroup2", "no cgroup2 is mounted"),
        ({"missing_capabilities": ("CAP_BPF",)}, "privileges", "lacks CAP_BPF"),
        ({"tracepoints": without("sock_send_length")}, "reads and writes", "older than 6.3"),
        ({"tracepoints": without("sock_recv_length")}, "reads and writes", "older than 6.3"),
        ({"tracepoints": without("tcp_send_reset")}, "tracepoints", "has no tcp_send_reset"),
    ],
)
def test_what_is_missing_is_said_with_what_it_costs(
    lacking: dict[str, bool | tuple[str, ...] | frozenset[str] | None], name: str, said: str
) -> None:
    finding = found(replace(ALL, **lacking))[name]  # type: ignore[arg-type]
    assert not finding.ok
    assert said in finding.detail
    assert finding.cost


def test_the_older_kernels_lack_of_two_tracepoints_is_said_once() -> None:
    older = ALL.tracepoints - {"sock_send_length", "sock_recv_length"}
    amiss = [each.name for each in findings(replace(ALL, tracepoints=older), NOT_BPFFS)]
    assert found(replace(ALL, tracepoints=older))["tracepoints"].ok
    assert amiss.count("reads and writes") == 1


@pytest.mark.parametrize(
    ("text", "notes"), [("839796 108400 2\n", True), ("0 0 0\n", False), ("", False), (None, False)]
)
def test_whether_the_scheduler_notes_waits_is_read_of_what_it_noted(
    tmp_path: Path, text: str | None, notes: bool
) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    assert notes_waits(tmp_path / "schedstat") is notes


def test_ticks_are_those_the_kernel_was_built_with() -> None:
    ticks = ticks_a_second()
    assert ticks in {100, 250, 300, 1000}
    # the coarse clock stands still between two ticks
    started = time.clock_gettime_ns(COARSE)
    while (first := time.clock_gettime_ns(COARSE)) == started:
        pass
    while (second := time.clock_gettime_ns(COARSE)) == first:
        pass
    ticks_between = (second - first) * ticks / 1e9
    assert ticks_between == pytest.approx(round(ticks_between), abs=0.1)
    assert round(ticks_between) >= 1


@pytest.mark.parametrize(("on_v1", "said"), [(True, "cgroup v1"), (False, "cgroup v2")])
def test_the_cpu_controllers_version_is_said(on_v1: bool, said: str) -> None:
    assert found(replace(ALL, cpu_on_v1=on_v1))["cpu controller"].detail == said


@pytest.mark.parametrize(
    "lacking",
    [
        {"libbpf": False},
        {"btf": False},
        {"ring_buffer": False},
        {"missing_capabilities": ("CAP_PERFMON",)},
    ],
)
def test_without_the_ground_nothing_is_measured(
    lacking: dict[str, bool | tuple[str, ...]],
) -> None:
    features = replace(ALL, **lacking)  # type: ignore[arg-type]
    assert (features.can_trace, features.can_stream) == (False, False)


@pytest.mark.parametrize("lacking", [{"loop": False}, {"socket_storage": False}, {"cgroup2": None}])
def test_without_what_streams_need_delay_is_still_measured(
    lacking: dict[str, bool | None],
) -> None:
    features = replace(ALL, **lacking)  # type: ignore[arg-type]
    assert (features.can_trace, features.can_stream) == (True, False)


def test_task_storage_is_not_needed() -> None:
    features = replace(ALL, task_storage=False)
    assert (features.can_trace, features.can_stream) == (True, True)


@pytest.mark.parametrize("path", ["/", "/proc/self/status", "/nothing/is/here"])
def test_other_file_systems_are_not_taken_for_bpffs(path: str) -> None:
    assert not is_bpffs(Path(path))


def test_without_libbpf_the_probe_still_says_what_needs_no_library() -> None:
    features = probe(None)
    asked = probe(Libbpf())
    assert (features.libbpf, features.can_trace, features.loop) == (False, False, False)
    assert (features.btf, features.cgroup2) == (asked.btf, asked.cgroup2)


def test_possible_cpus_are_those_the_kernel_lists() -> None:
    listed = Path("/sys/devices/system/cpu/possible").read_text().strip()
    spans = [span.split("-") for span in listed.split(",")]
    assert possible_cpus(Libbpf()) == sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
