import pytest

from tests.bench.ground import Part
from tests.bench.scale import cpus
from tests.bench.scale.report import is_exact, keys, plots, table
from tests.bench.scale.slow_server import CHUNK, EVENT, HEAD, LAST
from tests.bench.scale.streams import compare_totals, differences
from tests.bench.scale.usage import map_bytes


def point(**fields: object) -> Part:
    return {"wrong": 0, "lost": 0, "total_mismatch": {}, **fields}


def size(events: int) -> int:
    return len(HEAD) + events * len(CHUNK) + len(LAST)


def stream(events: int, **others: object) -> Part:
    seen = {"chunks": events, "body_bytes": events * len(EVENT)}
    return {**seen, "reason": "complete", "status": 200, **others}


@pytest.mark.parametrize("name", ["wrong", "lost", "unheard", "event_drops", "total_mismatch"])
def test_one_that_is_wrong_or_lost_is_not_exact(name: str) -> None:
    assert is_exact(point())
    assert not is_exact(point(**{name: {"chunks": [1, 2]} if name == "total_mismatch" else 1}))


def test_a_key_is_the_most_at_which_all_was_exact() -> None:
    found = {"streams": [point(streams=100), point(streams=1000), point(streams=9999, lost=1)]}
    assert keys(found)["scale.streams"] == 1000
    assert keys(found)["scale.cgroups"] is None


def test_streams_that_were_sent_got_and_seen_alike_differ_in_nothing() -> None:
    assert differences({1: 3, 2: 4}, {1: size(3), 2: size(4)}, {1: stream(3), 2: stream(4)}) == []


@pytest.mark.parametrize(
    ("got", "seen"),
    [
        ({1: size(3)}, {}),
        ({}, {1: stream(3)}),
        ({1: size(3) - 1}, {1: stream(3)}),
        ({1: size(3)}, {1: stream(2)}),
        ({1: size(3)}, {1: stream(3, reason="lost")}),
        ({1: size(3), 2: size(1)}, {1: stream(3)}),
    ],
)
def test_a_stream_seen_otherwise_is_told(got: dict[int, int], seen: dict[int, Part]) -> None:
    assert len(differences({1: 3}, got, seen)) == 1


def test_a_stream_that_was_cut_is_to_have_no_last_chunk_and_to_be_told_as_cut() -> None:
    got, cut = {1: size(3) - len(LAST)}, stream(3, reason="server_closed")
    assert differences({1: 3}, got, {1: cut}, cut=True) == []
    assert len(differences({1: 3}, got, {1: stream(3)}, cut=True)) == 1
    assert len(differences({1: 3}, got, {1: cut})) == 1


def test_totals_are_the_sums_of_what_was_sent() -> None:
    true = {"requests": 2, "responses": 2, "first_chunks": 2, "chunks": 7, "gaps": 5}
    counted = {**true, "body_bytes": 7 * len(EVENT), "ends_complete": 2, "ends_early": 0}
    assert compare_totals({1: 3, 2: 4}, counted) == {}
    assert compare_totals({1: 3, 2: 4}, {**counted, "gaps": 4}) == {"gaps": [5, 4]}


def test_each_map_counts_once_whoever_holds_it() -> None:
    info = "pos:\t0\nmap_type:\t2\nmap_id:\t{}\nmemlock:\t{}\n"
    texts = [info.format(7, 4096), info.format(7, 4096), info.format(8, 100), "pos:\t0\n"]
    assert sorted(map_bytes(texts)) == [100, 4096]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_any_number_of_cpus_is_summed_exactly(count: int) -> None:
    found = cpus.measure(count, targets=2)
    assert found["wrong"] == 0
    assert found["maps_mb"] == round(cpus.maps_bytes(count, 2) / 1e6, 2)


def test_what_was_measured_is_drawn_and_tabled() -> None:
    found = {"cpus": [cpus.measure(1, 2), cpus.measure(2, 2)]}
    assert plots(found).keys() == {"performance-cpus.svg"}
    assert "| cpus | 1 | 2 |" in table(found)
