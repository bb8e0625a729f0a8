import socket
from pathlib import Path

import pytest

from .conftest import Node
from .rig import Site, Sitsd
from .traffic import load
from .waiting import PATIENCE_S, becomes

pytestmark = pytest.mark.kernel


def test_streams_and_metrics_are_the_clients_own_count(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(8)
        assert traffic.failures == []
        ended = len(traffic.seen)
        streams = becomes(
            lambda: (s := sitsd.api.streams("chat", 0, 100)["streams"])[ended - 1 :] and s
        )
        assert len(streams) == ended
        assert {each["reason"] for each in streams} == {"complete"}
        assert {each["path"] for each in streams} == {"/v1/completions"}
        by_port = {
            port: [s for s in traffic.seen if s.port == port]
            for port in {s.port for s in traffic.seen}
        }
        for port, seen in by_port.items():
            measured = [each for each in streams if each["remote_port"] == port]
            assert [each["chunks"] for each in measured] == [each.chunks for each in seen]
            for mine, theirs in zip(measured, seen, strict=True):
                # the client starts its clock before the kernel does and stops it after
                assert 0 < mine["ttft_ms"] <= theirs.ttft_ns / 1e6
        assert sitsd.metric("sits_chunks_total", engine="chat") == traffic.chunks
        assert sitsd.metric("sits_requests_total", engine="chat") == ended
        assert sitsd.metric("sits_time_to_first_token_seconds_count", engine="chat") == ended
        assert sitsd.metric("sits_chunk_gap_seconds_count", engine="chat") == traffic.chunks - ended
        assert sitsd.metric("sits_streams_ended_total", engine="chat", reason="complete") == ended
        assert sitsd.metric("sits_streams_good_total", engine="chat") == ended


def test_the_service_manager_hears_once_of_the_start_and_of_the_end(node: Node, site: Site) -> None:
    site.write(node.targets())
    path = site.directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(PATIENCE_S)
        with site.sitsd(("env", f"NOTIFY_SOCKET={path}")) as sitsd:
            assert manager.recv(64) == b"READY=1"
            assert sitsd.api.engines()["engines"][0]["found"]
            sitsd.following()
            assert sitsd.end() == 0
        assert manager.recv(64) == b"STOPPING=1"


def ran(sitsd: Sitsd, program: str) -> float:
    return sitsd.metric("sits_bpf_program_runs_total", program=program)


def test_what_our_programs_take_is_shown_and_no_setting_is_changed_for_it(
    node: Node, site: Site
) -> None:
    setting = Path("/proc/sys/kernel/bpf_stats_enabled")
    before = setting.read_text()
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(2)
            # of the second counted right after the start, all may have been over before the traffic
            becomes(lambda: ran(sitsd, "switch_tasks") > 0 and ran(sitsd, "stream_out") > 0)
        assert sitsd.metric("sits_bpf_programs_counted_seconds_total") > 0
        for program in ("switch_tasks", "stream_out"):
            assert sitsd.metric("sits_bpf_program_run_seconds_total", program=program) > 0
        doctor = sitsd.api.doctor()
        assert doctor["counted_s"] > 0
        assert {"switch_tasks", "stream_out"} <= {each["name"] for each in doctor["programs"]}
        assert setting.read_text() == before
