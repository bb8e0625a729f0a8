from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.changed import changed


@dataclass(frozen=True, slots=True)
class Kept:
    number: int = 0
    words: tuple[str, ...] = ()
    many: dict[str, int] = field(default_factory=dict)


KEPT = st.builds(
    Kept,
    st.integers(),
    st.lists(st.text(), max_size=2).map(tuple),
    st.dictionaries(st.text(), st.integers(), max_size=2),
)


@given(KEPT, st.integers(), st.lists(st.text(), max_size=2).map(tuple))
def test_it_is_what_dataclasses_make_of_it(kept: Kept, number: int, words: tuple[str, ...]) -> None:
    made = changed(kept, number=number, words=words)
    assert made == replace(kept, number=number, words=words)
    assert made.many is kept.many


@given(KEPT)
def test_the_one_it_was_made_of_stays_as_it_was(kept: Kept) -> None:
    before = replace(kept)
    changed(kept, number=kept.number + 1)
    assert kept == before


def test_where_nothing_is_other_than_it_was_it_is_the_same_object() -> None:
    kept = Kept(3, ("a",), {"b": 1})
    assert changed(kept, number=3, many={"b": 1}) is kept


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(AttributeError):
        changed(Kept(), colour="red")
