"""What the first bytes of a request say, whatever they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.request_head import Caller, SpanRef, parse_traceparent, read_head

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
VALUE = f"00-{TRACE}-{SPAN}-01".encode()
CALLER = Caller(SpanRef(int(TRACE, 16), int(SPAN, 16)), sampled=True)

names = st.sampled_from([b"traceparent", b"Traceparent", b"TRACEPARENT", b"tRaCePaReNt"])
spaces = st.text(" \t", max_size=3).map(str.encode)


def head(*lines: bytes, end: bytes = b"\r\n\r\n") -> bytes:
    return b"\r\n".join((b"POST /v1/completions HTTP/1.1", b"host: a", *lines)) + end


@given(
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.integers(0, 255),
    st.sampled_from(["00", "01", "fe"]),
)
def test_a_value_gives_back_what_was_written(
    trace_id: int, span_id: int, flags: int, version: str
) -> None:
    value = f"{version}-{trace_id:032x}-{span_id:016x}-{flags:02x}".encode()
    assert parse_traceparent(value) == Caller(SpanRef(trace_id, span_id), bool(flags & 1))


@settings(deadline=None)
@given(st.binary(max_size=70) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{30,34}-[0-9a-f]{16}-.{1,3}"))
def test_a_value_holds_only_in_its_one_shape(value: bytes | str) -> None:
    raw = value if isinstance(value, bytes) else value.encode()
    caller = parse_traceparent(raw)
    if caller is not None:
        again = f"{caller.span.trace_id:032x}-{caller.span.span_id:016x}"
        assert raw[3:52] == again.encode()
        assert caller.span.trace_id
        assert caller.span.span_id


@pytest.mark.parametrize(
    "value",
    [
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        f"0-{TRACE}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        "",
    ],
)
def test_what_the_specification_forbids_is_malformed(value: str) -> None:
    assert parse_traceparent(value.encode()) is None
    found = read_head(head(b"traceparent: " + value.strip().encode() + b"x" * value.endswith("\n")))
    assert found.malformed
    assert found.caller is None


def test_a_later_version_may_say_more() -> None:
    assert parse_traceparent(VALUE.replace(b"00-", b"01-", 1) + b"-more") == CALLER


@given(names, spaces, spaces)
def test_the_header_is_found_in_any_case_and_with_any_space(
    name: bytes, before: bytes, after: bytes
) -> None:
    found = read_head(head(b"a: b", name + b":" + before + VALUE + after, b"c: d"))
    assert found.caller == CALLER
    assert not found.malformed
    assert not found.cut


@pytest.mark.parametrize(
    "line",
    [b"x-traceparent: " + VALUE, b"traceparent2: " + VALUE, b" traceparent: " + VALUE, VALUE],
)
def test_other_headers_are_not_taken_for_it(line: bytes) -> None:
    found = read_head(head(line))
    assert found.caller is None
    assert not found.malformed


def test_two_headers_are_malformed_even_if_they_agree() -> None:
    line = b"traceparent: " + VALUE
    found = read_head(head(line, line))
    assert found.caller is None
    assert found.malformed


def test_a_body_is_not_part_of_the_head() -> None:
    found = read_head(head() + b"\r\ntraceparent: " + VALUE + b"\r\n\r\n")
    assert found.caller is None
    assert not found.malformed


@given(st.integers(0, len(head(b"traceparent: " + VALUE, b"c: d"))))
def test_a_head_that_is_cut_is_said_to_be_and_never_malformed(at: int) -> None:
    whole = head(b"traceparent: " + VALUE, b"c: d")
    found = read_head(whole[:at])
    assert found.cut is (at < len(whole))
    assert not found.malformed
    assert found.caller in {None, CALLER}


@settings(deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=200).map(head))
def test_any_bytes_are_read_into_something_short_that_prints(raw: bytes) -> None:
    found = read_head(raw)
    assert (found.method + found.path).isprintable()
    assert len(found.path) <= 4 * 200
    assert found.method in {"", "_OTHER"} or raw.startswith(found.method.encode())


@pytest.mark.parametrize(
    ("line", "method", "path"),
    [
        (b"POST /v1/completions?key=secret HTTP/1.1", "POST", "/v1/completions"),
        (b"BREW /pot HTTP/1.1", "_OTHER", "/pot"),
        (b"post /pot HTTP/1.1", "_OTHER", "/pot"),
        (b"POST /\x1b[2J HTTP/1.1", "POST", "/\\x1b[2J"),
        (b"PRI", "", ""),
        (b"", "", ""),
    ],
)
def test_the_request_line_gives_method_and_path_without_the_query(
    line: bytes, method: str, path: str
) -> None:
    found = read_head(line + b"\r\n\r\n")
    assert (found.method, found.path) == (method, path)
