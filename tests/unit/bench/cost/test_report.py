import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.cost.budgets import BUDGETS
from tests.bench.cost.extent import QUICK, Extent
from tests.bench.cost.figures import Figure, Found
from tests.bench.cost.parts import PARTS, Part, run
from tests.bench.cost.report import markdown, numbers, parse_runs, runs, table, write

KEYS = [
    "overhead.switch_ns",
    "overhead.wakeup_ns",
    "overhead.peer_switch_ns",
    "overhead.switch_ratio",
    "overhead.pingpong_slowdown",
    "overhead.peer_pingpong_slowdown",
    "overhead.packet_ns",
    "overhead.stream_throughput_ratio",
    "loop.collect_us_p99",
    "loop.decide_us_p99",
    "loop.actuate_us_p99",
    "loop.total_ms_p99",
    "loop.reaction_ms_p50",
    "loop.reaction_ms_p99",
    "footprint.rss_mb",
    "footprint.cpu_percent_idle",
    "footprint.cpu_percent_100_streams",
    "footprint.load_ms",
    "footprint.bcc_load_ms",
    "scrape.ms_200_targets",
    "scrape.loop_disturbance_ratio",
    "cli.status_ms",
    "plugin.step_us",
    "scale.streams",
    "scale.cgroups",
    "scale.cpus_simulated",
]

FOUND: Found = {
    "overhead.switch_ns": Figure((190.0, 200.0, 230.0), peers={"theirs": Figure((700.0,))}),
    "overhead.switch_ratio": Figure((0.27,)),
    "overhead.pingpong_slowdown": Figure((0.02,)),
    "overhead.peer_pingpong_slowdown": Figure((0.09,)),
    "scale.streams": Figure((9_000.0,)),
    "footprint.bcc_load_ms": Figure(note="no headers here"),
}


def printed(found: Found) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table(found))
    return capture.get()


def test_the_file_has_exactly_the_keys_that_were_asked_for() -> None:
    assert list(BUDGETS) == KEYS
    assert list(numbers({})) == KEYS
    assert list(numbers(FOUND)) == KEYS


def test_every_key_is_of_exactly_one_part() -> None:
    assert sorted(key for part in PARTS.values() for key in part.keys) == sorted(KEYS)


def test_a_number_is_the_median_and_what_was_not_measured_is_null() -> None:
    told = numbers(FOUND)
    assert told["overhead.switch_ns"] == 200
    assert told["footprint.bcc_load_ms"] is None
    assert told["plugin.step_us"] is None


@pytest.mark.parametrize(
    ("key", "holds"),
    [
        ("overhead.switch_ratio", False),
        ("overhead.pingpong_slowdown", True),
        ("scale.streams", False),
        ("overhead.switch_ns", None),
        ("footprint.bcc_load_ms", None),
        ("loop.total_ms_p99", None),
    ],
)
def test_a_budget_is_kept_or_not_or_there_is_nothing_to_say(key: str, holds: bool | None) -> None:
    assert BUDGETS[key].holds(FOUND, key) is holds


def test_a_budget_by_a_peer_needs_the_peer() -> None:
    alone = {"overhead.pingpong_slowdown": Figure((0.02,))}
    assert BUDGETS["overhead.pingpong_slowdown"].holds(alone, "overhead.pingpong_slowdown") is None


def test_the_table_has_a_line_for_each_key_with_spread_peers_and_what_is_missing() -> None:
    text = printed(FOUND)
    assert all(key in text for key in KEYS)
    assert "200 (190…230) ns" in text
    assert "theirs: 700" in text
    assert "no headers here" in text
    assert "≥ 10,000" in text
    assert "≤ 0.03" in text, "a third of the peer's"


def test_a_document_has_the_same_lines() -> None:
    lines = markdown(FOUND).splitlines()
    assert len(lines) == 2 + len(KEYS)
    assert {line.count("|") for line in lines} == {6}
    assert "| `overhead.switch_ns` |  | 200 (190…230) ns |  | theirs: 700 |" in lines
    assert "| `footprint.bcc_load_ms` |  | no headers here |  |  |" in lines


def test_what_is_written_is_read_again_as_it_was(tmp_path: Path) -> None:
    write(FOUND, tmp_path / "bench.json", tmp_path / "bench-runs.json")
    told = json.loads((tmp_path / "bench-runs.json").read_text())
    assert parse_runs(told | {"gone.key": told["overhead.switch_ns"]}) == FOUND
    assert json.loads((tmp_path / "bench.json").read_text()) == numbers(FOUND)
    assert runs(FOUND)["overhead.switch_ns"]["spread"] == [190, 230]


def test_a_part_that_fails_says_so_in_each_of_its_figures() -> None:
    def measure(extent: Extent) -> Found:
        raise RuntimeError(f"no luck in {extent.rounds} rounds")

    found, why = run(Part(measure, ("scale.streams", "scale.cgroups")), QUICK)
    assert why == "RuntimeError: no luck in 5 rounds"
    assert {figure.note for figure in found.values()} == {f"failed: {why}"}
    assert numbers(found)["scale.streams"] is None
