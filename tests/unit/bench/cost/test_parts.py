import sys
from pathlib import Path
from typing import Any

import pytest

from bpf.libbpf import Runs
from tests.bench.cost import commands, footprint, loop, overhead, plugin, scale, scrape, streaming
from tests.bench.cost.counting import Counted, since
from tests.bench.cost.figures import Figure
from tests.bench.cost.overhead import Played
from tests.bench.cost.peers import Peer, PeerError, tracing, why_not
from tests.bench.cost.streaming import Streamed


def played(turn_ns: float, switch_ns: int) -> Played:
    ran = Runs(10, 10 * switch_ns)
    return Played(turn_ns, Counted({"sched_switch": ran, "sched_wakeup": ran}, ran, 10))


RUNS = {
    "alone": [Played(4_000, since({}, {})), Played(8_000, since({}, {}))],
    "nothing": [played(4_000, 50), played(8_000, 60)],
    "ours": [played(4_400, 250), played(8_800, 280)],
    "unwatched": [played(4_100, 150), played(8_200, 160)],
}


def test_overhead_is_told_by_ratios_of_the_same_round() -> None:
    theirs = {"runqlat": [played(6_000, 850), played(12_000, 940)]}
    found = overhead.figures(RUNS | theirs, {"runqlat-bt": "could not attach here"})
    assert found["overhead.switch_ratio"].values == (0.25, 0.25)
    assert found["overhead.pingpong_slowdown"].values == pytest.approx((0.1, 0.1))
    assert found["overhead.peer_pingpong_slowdown"].values == (0.5, 0.5)
    assert found["overhead.peer_switch_ns"].peers["runqlat-bt"].note == "could not attach here"


def test_programs_that_are_not_at_a_wake_up_cost_nothing_there() -> None:
    ran = Runs(10, 2_500)
    ours = Played(4_400, Counted({"sched_switch": ran}, ran, 10))
    found = overhead.figures(RUNS | {"ours": [ours, ours]}, {})
    assert found["overhead.wakeup_ns"].values == (0.0, 0.0)
    assert found["overhead.switch_ns"].values == (200.0, 190.0)


def test_without_the_peer_there_is_no_ratio_and_the_reason() -> None:
    found = overhead.figures(RUNS, {"runqlat": "could not attach here: not permitted"})
    for key in ("peer_switch_ns", "switch_ratio", "peer_pingpong_slowdown"):
        figure = found[f"overhead.{key}"]
        assert (figure.values, figure.note) == ((), "could not attach here: not permitted")
    assert found["overhead.switch_ns"].median == 210


def test_a_stream_nobody_follows_says_whether_our_programs_ran() -> None:
    followed = [Streamed(90.0, 400.0), Streamed(99.0, 420.0)]
    others = [Streamed(100.0, None), Streamed(100.0, None)]
    empty = [Streamed(100.0, 50.0), Streamed(100.0, 60.0)]
    found = streaming.figures(
        {"alone": others, "ours": followed, "unwatched": others, "nothing": empty}
    )
    assert found["overhead.packet_ns"].values == (350.0, 360.0)
    ratio = found["overhead.stream_throughput_ratio"]
    assert ratio.values == (0.9, 0.99)
    assert "none of our packet programs ran" in ratio.note
    assert ratio.peers["a stream nobody follows"].values == (1.0, 1.0)


def test_a_stage_that_had_nothing_to_do_is_no_zero() -> None:
    quiet: dict[str, Any] = {stage: {"p50": 1.0, "p99": 2.0} for stage in loop.STAGES.values()}
    quiet["actuate_us"] = {"p50": None, "p99": None}
    found = loop.stage_figures([quiet, quiet], [quiet])
    assert found["loop.collect_us_p99"].values == (2.0, 2.0)
    assert found["loop.collect_us_p99"].peers["8 engines"].values == (2.0,)
    assert found["loop.actuate_us_p99"] == Figure(
        (), "the loop had nothing to do", {"8 engines": Figure()}
    )


def test_runs_without_a_reaction_are_left_out() -> None:
    found = loop.reaction_figures(
        [{"p50": 1.5, "p99": 3.0, "count": 6}, {"p50": None, "p99": None, "count": 0}]
    )
    assert found["loop.reaction_ms_p50"].values == (1.5,)
    assert found["loop.reaction_ms_p99"].values == (3.0,)


INF = float("inf")


@pytest.mark.parametrize(
    ("counts", "q", "value"),
    [
        ({0.1: 50, 0.2: 100, INF: 100}, 0.5, 0.1),
        ({0.1: 50, 0.2: 100, INF: 100}, 0.75, 0.15),
        ({0.1: 0, 0.2: 100, INF: 100}, 0.5, 0.15),
        ({0.1: 10, 0.2: 10, INF: 100}, 0.9, 0.2),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    counts: dict[float, float], q: float, value: float
) -> None:
    before = dict.fromkeys(counts, 7.0)
    after = {bound: count + 7 for bound, count in counts.items()}
    assert scrape.quantile(before, after, q) == pytest.approx(value)


def test_of_a_scrape_only_the_lateness_of_ticks_is_read() -> None:
    text = """# TYPE sits_loop_stage_seconds histogram
sits_loop_stage_seconds_bucket{le="5e-05",stage="collect"} 7.0
sits_loop_stage_seconds_bucket{le="5e-05",stage="late"} 8.0
sits_loop_stage_seconds_bucket{stage="late",le="+Inf"} 9.0
sits_loop_stage_seconds_count{stage="late"} 9.0
"""
    assert scrape.late_buckets(text) == {5e-05: 8.0, INF: 9.0}


def test_a_command_is_told_beside_its_cpu_time_and_a_python_that_does_nothing() -> None:
    runs = {
        "status": [commands.Took(120, 90), commands.Took(140, 95), commands.Took(100, 80)],
        "nothing": [commands.Took(20, 15)] * 3,
    }
    (figure,) = commands.figures(runs).values()
    assert figure.median == 120
    assert {name: peer.median for name, peer in figure.peers.items()} == {
        "CPU time": 90,
        "a Python that does nothing": 20,
    }


def test_a_command_takes_at_least_the_cpu_time_that_it_uses(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.05: pass"
    run = commands.took((sys.executable, "-c", burn), tmp_path)
    assert run.cpu_ms >= 50
    assert run.wall_ms > 0


def test_a_command_that_fails_stops_the_bench_with_what_it_said(tmp_path: Path) -> None:
    failing = "import sys; print('no such socket'); sys.exit(3)"
    with pytest.raises(RuntimeError, match=r"sys\.exit.*: no such socket$"):
        commands.took((sys.executable, "-c", failing), tmp_path)


def test_the_plugin_is_told_state_by_state_and_steps_with_prompts_apart() -> None:
    rows = [
        {"prompts": False, "step": 0.9},
        {"prompts": False, "step": 1.2},
        {"prompts": True, "step": 3.1},
    ]
    (figure,) = plugin.figures(rows).values()
    assert figure.values == (0.9, 1.2)
    assert "3.10 µs" in figure.note


def test_scale_is_what_its_own_file_says(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    assert {figure.note for figure in scale.read(path).values()} == {"no scale.json"}
    path.write_text('{"scale.streams": 10000, "more": []}')
    found = scale.read(path)
    assert found["scale.streams"].median == 10_000
    assert found["scale.cgroups"].median is None


def peer(directory: Path, script: str) -> Peer:
    path = directory / "peer.sh"
    path.write_text(script)
    return Peer(("/bin/sh", str(path)), "some-tools")


def test_a_peer_that_is_not_here_names_its_package(tmp_path: Path) -> None:
    missing = Peer((str(tmp_path / "peer"),), "some-tools")
    said = pytest.raises(PeerError, match=r"peer is not here \(Debian: some-tools\)")
    with said, tracing(missing):
        pass


def test_a_peer_that_can_not_attach_is_told_in_its_own_words(tmp_path: Path) -> None:
    refused = peer(
        tmp_path, "echo 'libbpf: hm'; echo 'failed to attach: not permitted' >&2; exit 1"
    )
    said = pytest.raises(PeerError, match="could not attach here: failed to attach: not permitted")
    with said, tracing(refused):
        pass


def test_a_peer_that_traces_does_so_until_it_is_no_longer_wanted(tmp_path: Path) -> None:
    with tracing(peer(tmp_path, "echo 'Tracing… Hit Ctrl-C to end.'; exec sleep 60")) as pid:
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("said", "why"), [("", "it said nothing"), ("a\nb\n\n", "b")])
def test_the_last_word_counts(said: str, why: str) -> None:
    assert why_not(said) == why


def test_shares_of_a_core_are_added_for_both_processes() -> None:
    figure = footprint.cpu_figure([(0.5, 0.75, 60.0), (1.0, 1.0, 60.0)], "idle")
    assert figure.values == (1.25, 2.0)
    assert figure.peers["controller"].values == (0.75, 1.0)
