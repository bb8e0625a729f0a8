"""What a policy key may hold: each rule reads one value and can say what it allows."""

import datetime
import ipaddress
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from controller.plain import plain

UNIX_PATH_BYTES: Final = 107
"""The longest path a Unix socket can have: sun_path is 108 bytes, one for the final NUL."""

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""What the user may call an engine, a neighbour or a class."""

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_HEADER_NAME: Final = re.compile(r"[a-z0-9_.-]{1,100}(?<!-bin)")
_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_REQUEST_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_UNIT_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,248}\.(service|scope|slice)")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a key may hold. `read` returns the value to keep or raises ValueError.

    `allowed` completes "must be …"; the ValueError's text, if any, says more. `unit` is for the
    documentation, empty where a value has none. Where not `quoted`,
    a refusal does not repeat the value: it may be a secret.
    """

    allowed: str
    read: Callable[[object], Any]
    unit: str = ""
    quoted: bool = True


def number(low: float, high: float, unit: str = "") -> Rule:
    """Any number from `low` to `high`, kept as a float."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not low <= value <= high:
            raise ValueError
        return float(value)

    return Rule(f"a number{_of(unit)} from {low} to {high}", read, unit)


def whole(low: int, high: int, unit: str = "") -> Rule:
    """A whole number from `low` to `high`."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return Rule(f"a whole number{_of(unit)} from {low} to {high}", read, unit)


def choice(*names: str) -> Rule:
    """One of `names`."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return Rule("one of " + ", ".join(f'"{name}"' for name in names), read)


def switch() -> Rule:
    """True or false."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return Rule("true or false", read)


def directory() -> Rule:
    """An absolute path."""
    return Rule("an absolute path", _absolute)


def file() -> Rule:
    """An absolute path."""
    return Rule("an absolute path", _absolute)


def socket_path() -> Rule:
    """An absolute path short enough for a Unix socket."""

    def read(value: object) -> Path:
        path = _absolute(value)
        if len(str(path).encode()) > UNIX_PATH_BYTES:
            raise ValueError(f"it is longer than {UNIX_PATH_BYTES} bytes")
        return path

    return Rule(f"an absolute path of at most {UNIX_PATH_BYTES} bytes", read)


def address() -> Rule:
    """A host and port to listen on; `split_address` takes it apart."""

    def read(value: object) -> str:
        text = _text(value)
        split_address(text)
        return text

    return Rule("host:port, an IPv6 host in brackets, port 0 (any free one) to 65535", read)


def split_address(text: str) -> tuple[str, int]:
    """`"127.0.0.1:9464"` as `("127.0.0.1", 9464)`, brackets removed; ValueError says what is wrong.

    Names are not looked up.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("host and port are both needed")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError("the port is not 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError("an IPv6 host stands in brackets")
    elif re.fullmatch(r"[0-9.]+", host):
        ipaddress.IPv4Address(host)
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError("the host is neither an address nor a name")
    return host, int(port)


def socket_or_port() -> Rule:
    """A server at a Unix socket or a TCP port."""

    def read(value: object) -> str:
        text = _text(value)
        kind, _, path = text.partition(":")
        if kind == "unix":
            _absolute(path)
        else:
            split_address(text)
        return text

    return Rule("unix:/path or host:port", read)


def url() -> Rule:
    """The address of an HTTP or gRPC server, without user, query and fragment."""

    def read(value: object) -> str:
        text = _text(value)
        parts = urlsplit(text)
        if parts.scheme not in {"http", "https"} or not parts.hostname or not text.isprintable():
            raise ValueError
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("it has a user, a query or a fragment")
        if parts.port == 0 or any(each.isspace() for each in text):
            raise ValueError
        return text

    # a password may stand where none belongs
    return Rule('a URL such as "http://127.0.0.1:4317", "https" for TLS', read, quoted=False)


def text_table() -> Rule:
    """Names with texts."""

    def read(value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValueError
        for name, text in value.items():
            if not name or not isinstance(text, str) or "\0" in name + text:
                raise ValueError(f"{shown(name)} is not one")
        return dict(value)

    return Rule("a table of strings", read)


def header_table() -> Rule:
    """HTTP headers or gRPC metadata, whose values are nobody's business."""

    def read(value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValueError
        for name, text in value.items():
            if not _HEADER_NAME.fullmatch(name) or name.startswith("grpc-"):
                raise ValueError(f"{shown(name)} is not a header's name in lower case")
            if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
                raise ValueError(f"{shown(name)} is not printable ASCII")
        return dict(value)

    return Rule("a table of strings", read, quoted=False)


def request_header() -> Rule:
    """The name of an HTTP request header, kept in lower case as HTTP compares it."""

    def read(value: object) -> str:
        text = _text(value)
        if not _REQUEST_HEADER.fullmatch(text):
            raise ValueError
        return text.lower()

    return Rule("the name of a header: 1 to 64 of a-z, 0-9 and -", read)


def cgroup(*, children: bool) -> Rule:
    """A cgroup's path below the mount; with `children`, `/*` at the end means each child."""

    def read(value: object) -> str:
        text = _text(value)
        path = text
        if children and text.endswith("/*") and text != "//*":
            path = text[:-2] or "/"
        elif children and text == "/":
            raise ValueError("the root cgroup holds the engines too")
        parts = path.split("/")[1:]
        if not path.startswith("/") or "*" in path:
            raise ValueError
        if path != "/" and any(part in ("", ".", "..") for part in parts):
            raise ValueError('it has an empty, "." or ".." part')
        return text

    also = ', or with "/*" at the end for each of its children' if children else ""
    return Rule(f'a cgroup path from the mount, such as "/sits/engine"{also}', read)


def unit() -> Rule:
    """A systemd unit that has a cgroup."""

    def read(value: object) -> str:
        text = _text(value)
        if not _UNIT_NAME.fullmatch(text):
            raise ValueError
        return text

    return Rule("the name of a systemd service, scope or slice", read)


def slice_name() -> Rule:
    """A systemd slice."""

    def read(value: object) -> str:
        text = _text(value)
        if not _UNIT_NAME.fullmatch(text) or not text.endswith(".slice"):
            raise ValueError
        return text

    return Rule('the name of a systemd slice, such as "batch.slice"', read)


def class_name() -> Rule:
    """The name of a service class; whether there is one is held against the policy."""

    def read(value: object) -> str:
        text = _text(value)
        if not NAME.fullmatch(text):
            raise ValueError
        return text

    return Rule('the name of a class: "slo-a", "slo-b", or a table under [classes]', read)


def pattern() -> Rule:
    """A regular expression that is searched for in a process's command line."""

    def read(value: object) -> str:
        text = _text(value)
        try:
            with warnings.catch_warnings():
                # Python warns of patterns whose meaning may change; that is no reason to refuse.
                warnings.simplefilter("ignore", FutureWarning)
                matcher = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if matcher.search(""):
            raise ValueError("it matches every process")
        return text

    return Rule("a regular expression that does not match an empty command line", read)


def word(also: str = "") -> Rule:
    """A name of letters, digits and `_`, and what `also` has of other characters."""
    allowed = re.compile(rf"[A-Za-z0-9_{re.escape(also)}]{{1,100}}")

    def read(value: object) -> str:
        text = _text(value)
        if not allowed.fullmatch(text):
            raise ValueError
        return text

    return Rule(f"1 to 100 letters, digits and {' '.join(('_', *also))}", read)


def text() -> Rule:
    """Any text on one line."""

    def read(value: object) -> str:
        line = _text(value)
        if not line.isprintable() or len(line) > 1000:
            raise ValueError
        return line

    return Rule("a line of text", read)


def shown(value: object) -> str:
    """A value as an error names it: TOML's way, printable and short."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            clipped = value if len(value) <= 60 else value[:57] + "…"
            return plain(json.dumps(clipped, ensure_ascii=False))
        case dict():
            return "a table"
        case list():
            return "an array"
        case Path():
            return shown(str(value))
        case int() if value.bit_length() > 128:
            return "a huge number"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case datetime.date() | datetime.time():
            return f"the date or time {value.isoformat()}"
        case None:
            return "null"
    return str(value)


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    if "\0" in value:
        raise ValueError("it holds a NUL character")
    if not value:
        raise ValueError
    return value


def _absolute(value: object) -> Path:
    path = Path(_text(value))
    if not path.is_absolute():
        raise ValueError
    if ".." in path.parts:
        raise ValueError('it has a ".." part')
    return path
