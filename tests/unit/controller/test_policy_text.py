"""The line locator, against texts written in many styles and searched for their own markers."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.policy import PolicyError, parse_policy
from controller.policy_text import KeyPath, key_lines, line_of

DECOYS = (
    "# [decoy]\n",
    "\n",
    " \t\n",
    "# a = 'unclosed\n",
)
TRICKY_VALUES = (
    '"[decoy] # = \\" }"',
    "'\\'",
    '"""\n[decoy]\nx = "1"\n"""',
    '"""a\\"""b"""""',
    "'''\n# ' ''\nx = {'''''",
    "1979-05-27 07:32:00",
    "+1_000.5e3",
    "true",
    "[\n  1, # one ]\n  [2, {x = 3}],\n]",
    '{ x = "}", "y.z" = [1, 2], w = {} }',
)
WRONG = 1.2345e300
"""A value that no key allows and that occurs nowhere else."""
BARE = st.text("abz019_-", min_size=1, max_size=4)
ANY_KEY = st.one_of(BARE, st.text("ab .#=[]{}\"'\\é\n\x7f", max_size=4))


def quoted(name: str, draw: st.DrawFn) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) and draw(st.booleans()):
        return name
    if "'" not in name and name.isprintable() and draw(st.booleans()):
        return f"'{name}'"
    return json.dumps(name, ensure_ascii=True).replace("\x7f", "\\u007f")


def inline(value: Any, draw: st.DrawFn) -> str:
    if isinstance(value, dict):
        pairs = [f"{quoted(name, draw)} = {inline(item, draw)}" for name, item in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        gap = draw(st.sampled_from([" ", "\n", " # ]\n  "]))
        return "[" + "".join(f"{gap}{inline(item, draw)}{gap}," for item in value) + gap + "]"
    return json.dumps(value)


def pairs(table: dict[str, Any], prefix: str, draw: st.DrawFn) -> Iterator[str]:
    """`table` as pairs only, its tables inline or by dotted keys."""
    for name, value in table.items():
        key = prefix + quoted(name, draw)
        if isinstance(value, dict) and value and draw(st.booleans()):
            yield from pairs(value, key + draw(st.sampled_from([".", " . "])), draw)
        else:
            yield f"{key} = {inline(value, draw)}{draw(st.sampled_from(['', ' # x = 1']))}\n"
        yield draw(st.sampled_from(["", *DECOYS]))


def sections(table: dict[str, Any], prefix: str, draw: st.DrawFn) -> Iterator[str]:
    """`table` with each of its tables as a section of its own or as pairs."""
    headed = [
        name
        for name, value in table.items()
        if (isinstance(value, dict) or all_tables(value)) and draw(st.booleans())
    ]
    yield from pairs({name: table[name] for name in table if name not in headed}, "", draw)
    for name in headed:
        path = prefix + quoted(name, draw)
        if isinstance(table[name], dict):
            yield f"[{path}]\n"
            yield from sections(table[name], path + ".", draw)
        else:
            for element in table[name]:
                yield f"[[ {path} ]] # element\n"
                yield from sections(element, path + ".", draw)


def all_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, dict) for x in value)


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def numbered(value: Any, counter: Iterator[int]) -> Any:
    """`value` with a number of its own in every leaf, so that its line can be found by eye."""
    if isinstance(value, dict):
        return {name: numbered(item, counter) for name, item in value.items()}
    if isinstance(value, list):
        return [numbered(item, counter) for item in value]
    return next(counter)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A TOML text and what it holds, every leaf a number that occurs once in the text."""
    trees = st.recursive(
        st.none(),
        lambda inner: st.one_of(
            st.dictionaries(ANY_KEY, inner, max_size=3), st.lists(inner, max_size=3)
        ),
        max_leaves=8,
    )
    tree = draw(st.dictionaries(ANY_KEY, trees, max_size=4))
    content = numbered(tree, iter(range(700_000, 800_000)))
    return "".join(sections(content, "", draw)), content


@st.composite
def policy_texts(draw: st.DrawFn, wrong: float) -> tuple[str, KeyPath]:
    """A policy with one value replaced by `wrong`, and that value's key."""
    content: dict[str, Any] = {
        "mode": "shadow",
        "agent": {"max_targets": 3, "attach_root": True, "run_dir": "/run/x"},
        "controller": {"lease_ms": 900, "backpressure_threshold": 0.5},
        "engines": {
            "chat": {
                "cgroup": "/sits/chat",
                "admin_socket": "/run/chat.sock",
                "slo": {"ttft_ms": 1500, "gap_ms": 99.5},
                "limits": {"cpu_weight_max": 500},
                "knobs": {"min_batched_tokens": 8, "min_running": 2},
            },
            "code": {"command": "vllm .*--port 8001", "slo": {"attainment": 0.9}},
        },
        "neighbours": {"batch": {"cgroup": "/batch/*", "limit": False, "min_cores": 1}},
    }
    path = draw(st.sampled_from([path for path, _ in leaves(content)]))
    table = content
    for part in path[:-1]:
        table = table[str(part)]
    table[str(path[-1])] = wrong
    return "".join(sections(content, "", draw)), path


def line_with(text: str, token: str) -> int:
    (line,) = [n for n, line in enumerate(text.split("\n"), 1) if token in line]
    return line


@given(documents())
def test_every_leaf_is_on_the_line_its_number_is_on(document: tuple[str, dict[str, Any]]) -> None:
    text, content = document
    assert tomllib.loads(text) == content
    lines = key_lines(text)
    for path, number in leaves(content):
        assert lines[path] == line_with(text, str(number)), path


@given(policy_texts(WRONG))
def test_one_wrong_value_is_one_problem_on_its_own_line(case: tuple[str, KeyPath]) -> None:
    text, path = case
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.toml")
    line = line_with(text, str(WRONG))
    message = str(caught.value)
    assert message.startswith(f"p.toml:{line}: {'.'.join(map(str, path))}: must be ")
    assert message.endswith(f", not {WRONG}")
    assert "\n" not in message


@pytest.mark.parametrize("value", TRICKY_VALUES)
def test_a_value_of_any_form_does_not_hide_the_next_key(value: str) -> None:
    text = f"a = {value}\n[b]\nc = {value} # {value[:1]}\nlast = 1"
    assert tomllib.loads(text)["b"]["last"] == 1
    assert key_lines(text)["b", "last"] == text.count("\n") + 1


def test_windows_line_ends_count_once() -> None:
    assert key_lines("a = 1\r\nb = '''\r\n'''\r\nc = 2\r\n") == {("a",): 1, ("b",): 2, ("c",): 4}


def test_a_table_that_is_only_implied_has_the_line_that_implies_it() -> None:
    lines = key_lines("\n[a.b.c]\nd.e = 1\n")
    assert lines["a",] == lines["a", "b"] == lines["a", "b", "c"] == 2
    assert lines["a", "b", "c", "d"] == 3


def test_a_table_s_own_header_beats_an_earlier_mention() -> None:
    assert key_lines("[a.b]\n\n[a]\n")["a",] == 3


def test_a_header_below_an_array_of_tables_belongs_to_its_last_element() -> None:
    lines = key_lines("[[a]]\n[a.b]\nx = 1\n[[a]]\n[a.b]\nx = 2\n[[a.c]]\ny = 1\n[[a.c]]\ny = 2\n")
    assert lines["a", 0, "b", "x"] == 3
    assert lines["a", 1, "b", "x"] == 6
    assert lines["a", 1, "c", 1, "y"] == 10


def test_what_is_not_written_has_the_line_of_what_encloses_it() -> None:
    lines = key_lines("[a]\nb = {c = 1}\n")
    assert line_of(lines, ("a", "b", "x", "y")) == 2
    assert line_of(lines, ("a", "x")) == 1
    assert line_of(lines, ("x",)) is None


@example(r'"\1"')
@given(st.text("[]{}=.,#\"'\\ab1 \n", max_size=40))
def test_text_that_is_not_toml_is_no_error(text: str) -> None:
    total = text.count("\n") + 1
    assert all(1 <= line <= total for line in key_lines(text).values())


def test_nesting_too_deep_to_follow_keeps_what_came_before() -> None:
    assert key_lines("a = 1\nb = " + "[" * 100_000)["a",] == 1
