"""What a request's first bytes say: its method, its path and its caller's trace context.

Nothing here trusts the bytes: they come from whoever can reach the engine, and end where the
kernel stopped copying.
"""

import re
from dataclasses import dataclass
from typing import Final

from controller.plain import plain

PATH_CHARACTERS: Final = 200

_METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}
)
# W3C Trace Context level 1, section 3.2; what a version above 00 adds comes after another dash.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?",
    re.DOTALL,
)
_NAME: Final = b"traceparent"
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class SpanRef:
    """Where a span is: the trace it belongs to and its own id, neither zero."""

    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Caller:
    """The span a request was made in, and whether its trace is recorded."""

    span: SpanRef
    sampled: bool


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's first lines.

    `method` is `_OTHER` if HTTP knows no such method, and empty like `path` without a request line.
    `caller` is None without a `traceparent` that holds; `malformed` says there was one that does
    not. `cut` says that the end of the head was not among the bytes, so there may have been one.
    """

    method: str = ""
    path: str = ""
    caller: Caller | None = None
    malformed: bool = False
    cut: bool = False


def read_head(head: bytes) -> RequestHead:
    """What the first bytes of a request say; never fails."""
    lines, whole = _lines(head)
    method, path = _request_line(lines[0])
    # most requests have none
    values = _values(lines, _NAME) if _NAME in head.lower() else []
    # two are as good as none: nobody can say which is meant
    caller = parse_traceparent(values[0]) if len(values) == 1 else None
    return RequestHead(
        method=method,
        path=path,
        caller=caller,
        malformed=bool(values) and caller is None,
        cut=not whole,
    )


def header_values(head: bytes, name: str) -> tuple[list[bytes], bool]:
    """Every value that the first bytes of a request give a header, its name in lower case.

    Also whether the end of the head was among them, so that there are no more.
    """
    lines, whole = _lines(head)
    return _values(lines, name.encode()), whole


def parse_traceparent(value: bytes) -> Caller | None:
    """A `traceparent` header's value; None if it does not hold."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"00" and more is not None:
        return None
    return Caller(SpanRef(int(trace_id, 16), int(span_id, 16)), bool(int(flags, 16) & _SAMPLED))


def _lines(head: bytes) -> tuple[list[bytes], bool]:
    text, blank_line, _ = head.partition(b"\r\n\r\n")
    lines = text.split(b"\r\n")
    if not blank_line and len(lines) > 1:
        lines.pop()  # it may go on
    return lines, bool(blank_line)


def _values(lines: list[bytes], wanted: bytes) -> list[bytes]:
    return [
        value.strip(b" \t")
        for line in lines[1:]
        for name, colon, value in [line.partition(b":")]
        if colon and name.lower() == wanted
    ]


def _request_line(line: bytes) -> tuple[str, str]:
    parts = line.decode("latin-1").split(" ")
    if len(parts) < 2:
        return "", ""
    method = parts[0] if parts[0] in _METHODS else "_OTHER"
    return method, plain(parts[1].partition("?")[0][:PATH_CHARACTERS])
