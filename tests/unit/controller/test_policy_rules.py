"""What single values the policy takes and what it says of the others."""

import datetime
from pathlib import Path

import pytest

from controller.policy_rules import (
    Rule,
    address,
    cgroup,
    choice,
    directory,
    number,
    pattern,
    request_header,
    shown,
    socket_path,
    split_address,
    switch,
    unit,
    whole,
)

NOT_TEXT: tuple[object, ...] = (1, 1.5, True, None, [], {}, "", "/a\0b")


@pytest.mark.parametrize(
    ("rule", "value", "kept"),
    [
        (number(1, 10, "ms"), 1, 1.0),
        (number(1, 10), 10.0, 10.0),
        (whole(0, 5), 0, 0),
        (choice("a", "b"), "b", "b"),
        (switch(), False, False),
        (directory(), "/run/sits/", Path("/run/sits")),
        (socket_path(), "/" + "x" * 106, Path("/" + "x" * 106)),
        (request_header(), "X-Canary-Version", "x-canary-version"),
        (request_header(), "a" * 64, "a" * 64),
        (address(), "[::1]:0", "[::1]:0"),
        (address(), "node-1.example:65535", "node-1.example:65535"),
        (cgroup(children=False), "/", "/"),
        (cgroup(children=False), "/a.slice/b c", "/a.slice/b c"),
        (cgroup(children=True), "/*", "/*"),
        (cgroup(children=True), "/a/*", "/a/*"),
        (unit(), "vllm@0.service", "vllm@0.service"),
        (unit(), r"dev-a\x2db.slice", r"dev-a\x2db.slice"),
        (pattern(), "vllm serve .*--port 8000", "vllm serve .*--port 8000"),
        (pattern(), "[[a]", "[[a]"),
    ],
)
def test_what_is_allowed_is_kept(rule: Rule, value: object, kept: object) -> None:
    assert rule.read(value) == kept


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (number(1, 10), (0.999, 10.01, float("nan"), float("inf"), 10**400, True, "5", None, [])),
        (whole(0, 5), (-1, 6, 2.0, True, "2")),
        (choice("a", "b"), ("A", "", ["a"], 1)),
        (switch(), (0, 1, "true", None)),
        (directory(), (*NOT_TEXT, "run/sits", "/run/../etc", "~/x")),
        (request_header(), (*NOT_TEXT, "a" * 65, "a b", "a:", "ä", "a\n", "a_b")),
        (socket_path(), (*NOT_TEXT, "x.sock", "/" + "x" * 107, "/" + "é" * 54)),
        (cgroup(children=False), (*NOT_TEXT, "a", "/a/*", "/a//b", "/a/", "/a/../b", "//")),
        (cgroup(children=True), (*NOT_TEXT, "/", "*", "/*/*", "/a*", "/a/*/b", "//*", "/../*")),
        (unit(), (*NOT_TEXT, "vllm", "vllm.socket", "a b.service", ".service", "a/b.service")),
        (pattern(), (*NOT_TEXT, "(", ".*", "a|", "^", "a{99999999999}", "(" * 20_000)),
    ],
)
def test_what_is_not_allowed_is_refused(rule: Rule, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError):  # noqa: PT011 - the text is optional and tested elsewhere
            rule.read(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9464", "both needed"),
        (":9464", "both needed"),
        ("::1:9464", "brackets"),
        ("[::g]:1", "'::g'"),
        ("[127.0.0.1]:1", "127.0.0.1"),
        ("127.0.0.256:1", "127.0.0.256"),
        ("localhost:65536", "port"),
        ("localhost:-1", "port"),
        ("localhost:٣", "port"),
        ("localhost:", "port"),
        ("-x:1", "neither"),
        ("a b:1", "neither"),
    ],
)
def test_a_wrong_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_address(text)


def test_an_address_comes_apart_without_its_brackets() -> None:
    assert split_address("[fe80::1]:9464") == ("fe80::1", 9464)
    assert split_address("0.0.0.0:80") == ("0.0.0.0", 80)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("fast", '"fast"'),
        ("a\n\x1b\u202e", r'"a\n\u001b\u202e"'),
        ("x" * 99, '"' + "x" * 57 + '…"'),
        (True, "true"),
        (None, "null"),
        (2.0, "2"),
        (0.25, "0.25"),
        (float("nan"), "nan"),
        (10**100, "a huge number"),
        ([1], "an array"),
        ({"a": 1}, "a table"),
        (Path("/x"), '"/x"'),
        (datetime.date(2024, 2, 29), "the date or time 2024-02-29"),
    ],
)
def test_a_value_is_shown_short_and_printable(value: object, text: str) -> None:
    assert shown(value) == text
