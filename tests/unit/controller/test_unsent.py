from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.unsent import FORGOTTEN, REMEMBERED_NS, Unsent, UnsentWatch

from .situations import MS, SECOND

LIMIT_NS: Final = 100 * MS
TICK_NS: Final = 20 * MS


class Streams:
    """Streams that begin and end to be unable to send."""

    def __init__(self) -> None:
        self.watch = UnsentWatch(LIMIT_NS)
        self.now_ns = 1000 * SECOND
        self.begun = self.ended = 0

    def after(self, ns: int, **counted: int) -> Unsent:
        """What it comes to after so long, looked at every tick."""
        end_ns = self.now_ns + ns
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            counters = Counters(blocked_begun=self.begun, blocked_ended=self.ended, **counted)
            found = self.watch.take(self.now_ns, counters)
        return found


def test_a_stream_that_cannot_send_for_too_long_is_stuck_until_it_can() -> None:
    streams = Streams()
    assert streams.after(10 * LIMIT_NS).stuck == 0
    streams.begun = 1
    assert streams.after(LIMIT_NS).stuck == 0
    assert streams.after(LIMIT_NS // 2).stuck == 1
    streams.ended = 1
    assert streams.after(TICK_NS).stuck == 0


def test_streams_that_are_blocked_one_after_the_other_are_not_stuck() -> None:
    streams = Streams()
    for _ in range(50):
        streams.begun += 1
        assert streams.after(TICK_NS).stuck == 0
        streams.ended = streams.begun - 1  # there is always one


def test_of_two_that_were_blocked_one_may_have_ended() -> None:
    streams = Streams()
    streams.begun = 2
    streams.after(2 * LIMIT_NS)
    streams.begun, streams.ended = 3, 1
    assert streams.after(TICK_NS).stuck == 1


def test_a_stream_stuck_for_a_minute_is_forgotten_and_another_is_not() -> None:
    streams = Streams()
    streams.begun = 1
    assert streams.after((FORGOTTEN - 2) * SECOND).stuck == 1
    assert streams.after(5 * SECOND).stuck == 0
    streams.begun = 2
    assert streams.after(2 * LIMIT_NS).stuck == 1


def test_what_writes_met_is_remembered_for_some_seconds() -> None:
    streams = Streams()
    streams.after(SECOND)
    met = {"writes_stalled": 5, "writes_held": 4, "retransmits": 3}
    found = streams.after(REMEMBERED_NS // 2, **met)
    assert (found.stalled, found.held, found.again) == (5, 4, 3)
    found = streams.after(REMEMBERED_NS, **met)
    assert (found.stalled, found.held, found.again) == (0, 0, 0)


lives = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 60)).map(lambda t: (t[0], t[0] + t[1])),
    max_size=8,
)
"""Ticks from and up to which streams can't send."""


@given(lives)
def test_no_more_streams_are_called_stuck_than_are(lives: list[tuple[int, int]]) -> None:
    streams = Streams()
    for tick in range(260):
        streams.begun = sum(begin <= tick for begin, _ in lives)
        streams.ended = sum(end <= tick for _, end in lives)
        since = tick - LIMIT_NS // TICK_NS
        stuck = sum(begin <= since and tick < end for begin, end in lives)
        assert streams.after(TICK_NS).stuck <= stuck


@given(st.integers(0, 100), st.integers(0, 40))
def test_one_stream_alone_is_stuck_exactly_when_it_cannot_send_for_longer(
    begin: int, ticks: int
) -> None:
    streams = Streams()
    seen = False
    for tick in range(160):
        streams.begun, streams.ended = int(begin <= tick), int(begin + ticks <= tick)
        seen |= streams.after(TICK_NS).stuck == 1
    # the bound looks back by no more than a sixteenth of the limit, or a tick, too far
    if ticks * TICK_NS > LIMIT_NS + 2 * TICK_NS:
        assert seen
    if ticks * TICK_NS < LIMIT_NS:
        assert not seen
