"""Hostile text on a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from controller.plain import plain


@given(st.text(st.characters()))
def test_the_result_always_prints_and_encodes(text: str) -> None:
    assert plain(text).isprintable()
    plain(text).encode()


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_text_that_prints_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


def test_escapes_show_which_character_was_there() -> None:
    hostile = "a\x1b[2J\n\u202eb\udc80\x9b"
    assert plain(hostile) == r"a\x1b[2J\n\u202eb\udc80\x9b"
