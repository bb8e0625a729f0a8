"""Every input that was once worth keeping goes through its target without a fault."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS

INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_of_the_corpus_is_no_fault(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_a_corpus(name: str) -> None:
    assert sum(path.parent.name == name for path in INPUTS) >= 5


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_an_input_of_the_corpus_that_is_cut_or_has_other_bytes_is_no_fault(
    name: str, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from([each for each in INPUTS if each.parent.name == name]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    TARGETS[name](bytes(content))
