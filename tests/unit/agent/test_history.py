from collections.abc import Mapping
from dataclasses import replace

from agent.history import HISTOGRAMS_KEPT, KEPT, History, Moment
from bpf.layout import Counters

from .made import MS, histogram

SECOND_NS = 1_000 * MS


def moment(at_s: int, chunks: int, cause_ns: Mapping[str, int] | None = None) -> Moment:
    gaps = histogram(*[20 * MS] * chunks)
    return Moment(at_s * SECOND_NS, Counters(chunks=chunks), cause_ns or {}, gap=gaps, ttft=gaps)


def history_of(*moments: Moment) -> History:
    history = History()
    for each in moments:
        history.add(each)
    return history


def test_there_is_no_window_before_two_moments() -> None:
    assert History().window(10) is None
    assert history_of(moment(1, 5)).window(10) is None


def test_a_window_is_what_happened_between_its_ends() -> None:
    window = history_of(moment(0, 1), moment(1, 4), moment(2, 9)).window(1)
    assert window is not None
    assert window.seconds == 1
    assert window.counters.chunks == 5
    assert window.gap == histogram(*[20 * MS] * 5)


def test_a_window_longer_than_what_is_known_is_as_long_as_that() -> None:
    window = history_of(moment(5, 1), moment(6, 4)).window(3600)
    assert window is not None
    assert (window.seconds, window.counters.chunks) == (1, 3)


def test_memory_is_bounded_and_old_moments_keep_counters_without_histograms() -> None:
    history = history_of(*[moment(at, at) for at in range(KEPT + 50)])
    window = history.window(3600)
    assert window is not None
    assert window.counters.chunks == KEPT - 1
    assert window.gap.count == HISTOGRAMS_KEPT - 1


def test_a_window_within_the_histograms_has_the_whole_of_them() -> None:
    window = history_of(*[moment(at, at) for at in range(300)]).window(60)
    assert window is not None
    assert window.gap.count == window.counters.chunks == 60


def test_an_engine_that_starts_anew_starts_a_history_anew() -> None:
    history = history_of(moment(0, 90), moment(1, 100), moment(2, 0))
    assert history.window(10) is None
    history.add(moment(3, 7))
    window = history.window(10)
    assert window is not None
    assert (window.counters.chunks, window.gap.count) == (7, 7)


def test_causes_and_losses_are_those_of_the_window_and_peaks_the_worst_in_it() -> None:
    def at(second: int, lost: int, peak: float) -> Moment:
        causes = {"batch": second * MS}
        return replace(moment(second, 0, causes), lost={"memory_ns": lost}, peaks={"step": peak})

    window = history_of(at(0, 5, 900.0), at(1, 7, 40.0), at(2, 7, 80.0), at(3, 10, 60.0)).window(2)
    assert window is not None
    assert window.cause_ns == {"batch": 2 * MS}
    assert window.lost == {"memory_ns": 3}
    assert window.peaks == {"step": 80.0}


def test_a_moment_is_the_last_one_by_then_or_the_first_there_is() -> None:
    history = history_of(moment(5, 1), moment(6, 4), moment(7, 9))
    for at_s, expected_s in ((4, 5), (5, 5), (6.5, 6), (7, 7), (99, 7)):
        found = history.moment(int(at_s * SECOND_NS))
        assert found is not None
        assert found.at_ns == expected_s * SECOND_NS
    assert History().moment(5) is None
