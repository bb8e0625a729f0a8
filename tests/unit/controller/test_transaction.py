from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.contract import ContractError, Knob
from controller.serving.leases import Leases
from controller.transaction import (
    AGAIN_NS,
    PREPARE_NS,
    RECORD_NS,
    REVERT_NS,
    TERM_NS,
    Answered,
    Ask,
    Effect,
    Event,
    Gone,
    Record,
    Recorded,
    Stage,
    Standing,
    Transaction,
    Unrecorded,
    begin,
    resume,
    step,
)

MS: Final = 1_000_000
OWNER: Final = "sits"
LEASE_MS: Final = 10_000
WANTED: Final = 8
KNOB: Final = Knob("max_running", 1, 64, 64, "requests")
T0: Final = 1_000_000_000


class Story:
    """A coordinator whose engines the test speaks for."""

    def __init__(self, *names: str) -> None:
        self.now_ns = T0
        self.state, self.out = begin(names, self.now_ns)

    def take(self, event: Event = None, after_ns: int = 0) -> tuple[Effect, ...]:
        self.now_ns += after_ns
        self.state, self.out = step(self.state, event, self.now_ns)
        return self.out

    def vote(self, *names: str, code: str = "") -> tuple[Effect, ...]:
        out: tuple[Effect, ...] = ()
        for name in names:
            out += self.take(Answered(name, "prepare", code, code))
        return out

    def committed(self, *names: str) -> None:
        for name in names:
            self.take(Answered(name, "commit"))


def prepared(*names: str) -> Story:
    """All were asked to prepare."""
    story = Story(*names)
    story.take(Recorded(Stage.PREPARING))
    return story


def test_nothing_is_sent_before_the_journal_has_the_beginning() -> None:
    story = Story("a", "b")
    assert story.out == (Record(Stage.PREPARING),)
    assert story.take(after_ns=MS) == ()
    assert story.take(Recorded(Stage.PREPARING)) == (Ask("a", "prepare"), Ask("b", "prepare"))


def test_nothing_is_committed_before_the_journal_has_the_decision() -> None:
    story = prepared("a", "b")
    assert story.vote("a", "b") == (Record(Stage.COMMITTING),)
    assert story.take(after_ns=MS) == ()
    assert story.take(Recorded(Stage.COMMITTING)) == (Ask("a", "commit"), Ask("b", "commit"))
    story.committed("a", "b")
    assert story.state.stands


@pytest.mark.parametrize(
    ("engines", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 4), (7, 5), (9, 6)]
)
def test_two_thirds_must_prepare(engines: int, needed: int) -> None:
    names = [str(n) for n in range(engines)]
    enough, short = prepared(*names), prepared(*names)
    assert enough.state.quorum == needed
    enough.vote(*names[: engines - needed], code="out_of_range")
    enough.vote(*names[engines - needed :])
    assert enough.state.stage is Stage.COMMITTING
    short.vote(*names[: engines - needed + 1], code="out_of_range")
    assert short.state.stage is Stage.ABORTING


def test_who_refused_is_told_to_abort_and_left_behind() -> None:
    story = prepared("a", "b", "c")
    out = story.vote("a", code="held") + story.vote("b", "c")
    assert out == (Record(Stage.COMMITTING), Ask("a", "abort"))
    story.take(Recorded(Stage.COMMITTING))
    story.committed("b", "c")
    assert story.state.stands
    assert story.state.participants["a"].standing is Standing.REFUSED
    assert story.state.participants["a"].detail == "held"


def test_who_is_silent_counts_as_refused_after_a_while_and_is_told_to_abort() -> None:
    story = prepared("a", "b", "c")
    assert story.vote("a", "b") == ()
    assert story.take(after_ns=PREPARE_NS) == (Record(Stage.COMMITTING), Ask("c", "abort"))
    story.take(Recorded(Stage.COMMITTING))
    assert Ask("c", "abort") in story.take(after_ns=AGAIN_NS)
    story.committed("a", "b")
    assert story.state.stands


def test_when_too_few_can_prepare_all_are_told_to_abort_at_once() -> None:
    story = prepared("a", "b", "c")
    story.vote("a")
    story.vote("b", code="held")
    assert story.vote("c", code="held") == tuple(Ask(name, "abort") for name in "abc")
    story.take(Answered("a", "abort"))
    assert story.state.stage is Stage.DONE
    assert story.state.why == "1 of 3 could prepare it, 2 had to"


def test_a_journal_that_takes_nothing_stops_it_before_anything_is_sent() -> None:
    story = Story("a")
    assert story.take(Unrecorded("no room")) == ()
    assert story.state.stage is Stage.DONE
    assert story.state.why == "could not be journalled: no room"
    late = Story("a")
    assert late.take(after_ns=RECORD_NS) == ()
    assert late.state.stage is Stage.DONE
    assert late.take(Recorded(Stage.PREPARING)) == ()


def test_a_decision_that_can_not_be_journalled_is_an_abort() -> None:
    story = prepared("a", "b")
    story.vote("a", "b")
    assert story.take(Unrecorded("no room")) == (Ask("a", "abort"), Ask("b", "abort"))


def test_a_commit_without_an_answer_is_asked_again_until_the_term_ends() -> None:
    story = prepared("a", "b", "c")
    story.vote("a", "b", "c")
    story.take(Recorded(Stage.COMMITTING))
    story.committed("a", "b")
    assert story.take(after_ns=AGAIN_NS) == (Ask("c", "commit"),)
    assert story.state.stage is Stage.COMMITTING
    story.take(after_ns=TERM_NS)
    assert story.state.stands
    assert story.state.participants["c"].standing is Standing.LOST


def test_fewer_than_two_thirds_that_committed_are_released() -> None:
    story = prepared("a", "b", "c")
    story.vote("a", "b", "c")
    story.take(Recorded(Stage.COMMITTING))
    story.committed("a")
    story.take(Answered("b", "commit", "not_prepared"))
    story.take(Gone("c", "it began anew"))
    assert story.out == tuple(Ask(name, "release") for name in "abc")
    story.take(Answered("a", "release"))
    assert story.state.stage is Stage.DONE
    assert story.state.why == "1 of 3 committed it, 2 had to"


def test_a_release_that_is_not_answered_holds_nobody_up() -> None:
    story = prepared("a", "b")
    story.vote("a", "b")
    story.take(Recorded(Stage.COMMITTING))
    story.committed("a")
    story.take(Answered("b", "commit", "held"))
    assert story.take(after_ns=REVERT_NS - MS) == (Ask("a", "release"),)
    story.take(after_ns=MS)
    assert story.state.stage is Stage.DONE


def test_an_engine_that_began_anew_does_not_count_as_prepared() -> None:
    story = prepared("a", "b")
    story.vote("a")
    story.take(Gone("a", "it began anew"))
    assert story.state.stage is Stage.ABORTING


def test_after_a_crash_what_was_only_begun_is_aborted() -> None:
    _, out = resume(dict.fromkeys("ab", Standing.ASKED), Stage.PREPARING, T0)
    assert out == (Ask("a", "abort"), Ask("b", "abort"))


def test_after_a_crash_what_was_decided_is_committed_by_those_who_prepared() -> None:
    recorded = {"a": Standing.PREPARED, "b": Standing.PREPARED, "c": Standing.SILENT}
    state, out = resume(recorded, Stage.COMMITTING, T0)
    assert out == (Ask("a", "commit"), Ask("b", "commit"), Ask("c", "abort"))
    for name in "ab":
        state, _ = step(state, Answered(name, "commit"), T0)
    assert state.stands


@dataclass
class World:
    """Engines by the contract, a network that loses and reorders, a journal, a clock.

    Whatever is drawn happens: `lose`, `deliver` and the like take the n-th of what is on its way.
    """

    count: int
    unwilling: frozenset[int]
    now_ns: int = T0
    engines: dict[str, Leases] = field(default_factory=dict)
    journal: tuple[Stage, dict[str, Standing]] | None = None
    asked: list[Ask] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    to_record: list[Stage] = field(default_factory=list)
    epoch: int = 1
    state: Transaction | None = None

    def __post_init__(self) -> None:
        for n in range(self.count):
            self.engines[str(n)] = leases = Leases({KNOB.name: KNOB}, LEASE_MS)
            if n in self.unwilling:
                leases.set(self.now_ns, "other", 1, LEASE_MS, {})
        self.epoch = 2
        self._run(begin(self.engines, self.now_ns))

    def _run(self, made: tuple[Transaction, tuple[Effect, ...]]) -> None:
        self.state, effects = made
        for each in effects:
            if isinstance(each, Record):
                self.to_record.append(each.stage)
            else:
                self.asked.append(each)

    def take(self, event: Event) -> None:
        if self.state is not None:
            self._run(step(self.state, event, self.now_ns))

    def deliver(self, n: int) -> None:
        if not self.asked:
            return
        ask = self.asked.pop(n % len(self.asked))
        engine, code = self.engines[ask.name], ""
        try:
            match ask.call:
                case "prepare":
                    wanted = {KNOB.name: WANTED}
                    engine.prepare(
                        self.now_ns, OWNER, self.epoch, LEASE_MS, wanted, term_ms=TERM_NS // MS
                    )
                case "commit":
                    # only a decision that is on disk may reach an engine
                    assert self.journal is not None
                    assert self.journal[0] is Stage.COMMITTING
                    engine.commit(self.now_ns, OWNER, self.epoch)
                case "abort":
                    engine.abort(self.now_ns, OWNER, self.epoch)
                case _:
                    engine.release(self.now_ns, OWNER)
        except ContractError as error:
            code = error.code
        engine.apply()
        self.answers.append(Answered(ask.name, ask.call, code))

    def lose(self, n: int) -> None:
        if self.asked:
            self.asked.pop(n % len(self.asked))

    def hear(self, n: int) -> None:
        if self.answers:
            self.take(self.answers.pop(n % len(self.answers)))

    def hear_twice(self, n: int) -> None:
        if self.answers:
            self.take(self.answers[n % len(self.answers)])

    def mishear(self, n: int) -> None:
        if self.answers:
            self.answers.pop(n % len(self.answers))

    def record(self, _: int) -> None:
        if self.to_record and self.state is not None:
            stage = self.to_record.pop(0)
            people = self.state.participants.items()
            self.journal = (stage, {name: each.standing for name, each in people})
            self.take(Recorded(stage))

    def fail_to_record(self, _: int) -> None:
        if self.to_record:
            self.to_record.pop(0)
            self.take(Unrecorded("no room"))

    def crash(self, _: int) -> None:
        """The coordinator dies with all it was about to do; requests may still arrive."""
        self.state = None
        self.answers.clear()
        self.to_record.clear()

    def recover(self, _: int) -> None:
        if self.state is not None or self.journal is None:
            return
        stage, standings = self.journal
        self._run(resume(standings, stage, self.now_ns))

    def restart(self, n: int) -> None:
        name = str(n % self.count)
        self.engines[name] = Leases({KNOB.name: KNOB}, LEASE_MS)
        self.asked = [ask for ask in self.asked if ask.name != name]
        self.answers = [each for each in self.answers if each.name != name]
        self.take(Gone(name, "it began anew"))

    def wait(self, n: int) -> None:
        self.now_ns += (n + 1) * 50 * MS
        for engine in self.engines.values():
            engine.expire(self.now_ns)
        self.take(None)

    def changed(self) -> list[str]:
        return [name for name, each in self.engines.items() if each.values[KNOB.name] == WANTED]


ACTIONS: Final[tuple[Callable[[World, int], None], ...]] = (
    World.deliver,
    World.deliver,
    World.hear,
    World.hear,
    World.record,
    World.lose,
    World.hear_twice,
    World.mishear,
    World.fail_to_record,
    World.crash,
    World.recover,
    World.restart,
    World.wait,
)
_ACTS: Final = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 30)), max_size=80)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 6))
    return World(count, frozenset(draw(st.sets(st.integers(0, count - 1), max_size=2))))


def settle(world: World) -> None:
    """From now on everything works, and there is a coordinator."""
    world.recover(0)
    for _ in range(200):
        while world.asked or world.answers or world.to_record:
            world.record(0)
            world.deliver(0)
            world.hear(0)
        world.wait(1)
        if world.state is None or world.state.stage is Stage.DONE:
            return


@given(worlds(), _ACTS)
def test_whatever_is_lost_repeated_or_killed_it_ends_whole_or_not_at_all(
    world: World, acts: list[tuple[Callable[[World, int], None], int]]
) -> None:
    for act, n in acts:
        act(world, n)
        if world.changed():
            assert world.journal is not None
            assert world.journal[0] is Stage.COMMITTING
    settle(world)
    state = world.state
    if state is not None:
        assert state.stage is Stage.DONE
        committed = state.of(Standing.COMMITTED)
        assert state.stands == (len(committed) >= state.quorum)
        if state.stands:
            assert not set(state.of(Standing.REFUSED, Standing.ABORTED)) & set(committed)
    # nobody renews any more: at the latest the engines' own terms bring all back
    world.wait(LEASE_MS // 50)
    assert not world.changed()
    assert not any(each.prepared for each in world.engines.values())


@given(st.integers(1, 6), st.integers(0, 100))
def test_a_coordinator_that_dies_at_any_point_is_taken_up_and_all_agree(
    count: int, moments: int
) -> None:
    world = World(count, frozenset())
    for _ in range(moments):
        if world.to_record:
            world.record(0)
        elif world.asked:
            world.deliver(0)
        elif world.answers:
            world.hear(0)
    world.crash(0)
    decided = world.journal is not None and world.journal[0] is Stage.COMMITTING
    settle(world)
    assert sorted(world.changed()) == (sorted(world.engines) if decided else [])
    assert not any(each.prepared for each in world.engines.values())
