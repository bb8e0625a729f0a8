"""Checks of the wire: lines, ids, and what a client must not be able to do."""

import time
from contextlib import suppress
from typing import Any, Final

from controller.conformance.check import BreachError, check
from controller.conformance.probe import Probe
from controller.conformance.wire import Answer, Wire, shown
from controller.engines.contract import MAX_LINE_BYTES, encode

NO_MESSAGES: Final = (
    b"GET / HTTP/1.1\n",
    b"[]\n",
    b"7\n",
    b"null\n",
    b'{"call":"get"\n',
    b'{"call":"get"}{"call":"get"}\n',
    b"\xff\xfe\x00\x01\x02\n",
    b'{"call":"\xc3("}\n',
    b"[" * 30_000 + b"\n",
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"\n",
)
"""Lines that are not one JSON object; nested so deep that a reader which recurses would break."""

_PIECE_S: Final = 0.02
"""Between pieces, so that each is read by itself."""

CROWD: Final = 70
"""Connections: more than the 64 that an engine keeps."""

_MUCH_BYTES: Final = 600_000
"""Of answers: more than a socket's buffer takes, so that an engine that waits for room hangs."""

_UNREAD_BYTES: Final = 8 << 20
"""Of answers that nobody reads: beyond the socket's own buffer and the engine's 256 KiB."""


@check("wire", "`id`, a whole number or a string that the response repeats")
def ids(probe: Probe) -> None:
    """A response repeats the id, number or string."""
    wire = probe.connect()
    for id_ in (0, 7, 2**53 - 1, "a", ""):
        wire.send(encode({"id": id_, "call": "get"}))
        wire.answer(id_).ok()
    wire.send(encode({"call": "get"}))
    wire.answer(None).ok()


@check("wire", "A client may send several requests before it reads the first response.")
def pipelining(probe: Probe) -> None:
    """Several requests sent at once are answered in order."""
    wire = probe.connect()
    calls = ("get", "stats", "hello", "no-such-call") * 10
    wire.send(b"".join(encode({"id": id_, "call": call}) for id_, call in enumerate(calls)))
    for id_, call in enumerate(calls):
        answer = wire.answer(id_)
        answer.require((answer.code is None) == (call != "no-such-call"), f"the answer to {call}")


@check("wire", "Fields that a reader does not know are ignored.")
def unknown_fields(probe: Probe) -> None:
    """Fields the engine does not know are ignored."""
    wire = probe.connect()
    wire.ask("get", later={"version": [9]}, colour="blue").ok()


@check("wire", "Empty lines are ignored.")
def empty_lines(probe: Probe) -> None:
    """Empty lines are ignored."""
    wire = probe.connect()
    wire.send(b"\n\n  \n" + encode({"id": 1, "call": "get"}) + b"\n")
    wire.answer(1).ok()
    wire.ask("get").ok()


@check("wire", "A message is one JSON object on one line: UTF-8, ended by `\\n`")
def pieces(probe: Probe) -> None:
    """A line that comes in pieces is read whole, and half a line harms no one."""
    wire, half = probe.connect(), probe.connect()
    half.send(b'{"id":1,"call":"ge')
    line = encode({"id": 5, "call": "get"})
    for piece in (line[:1], line[1:9], line[9:-1], line[-1:]):
        wire.send(piece)
        time.sleep(_PIECE_S)
    wire.answer(5).ok()
    half.close()
    wire.ask("get").ok()


@check("errors", "the line is not one JSON object, or too long")
def bad_json(probe: Probe) -> None:
    """What is no JSON object is refused, and the next line is answered."""
    wire = probe.connect()
    for line in NO_MESSAGES:
        wire.send(line)
        wire.answer(None).refused("bad_json")
    wire.ask("get").ok()


@check("wire", "at most 65,536 bytes with it")
def longest_line(probe: Probe) -> None:
    """A line of 65,536 bytes is read."""
    wire = probe.connect()
    line = encode({"id": 3, "call": "get", "later": ""})
    filled = line.replace(b'"later":""', b'"later":"%s"' % (b"x" * (MAX_LINE_BYTES - len(line))))
    wire.send(filled)
    wire.answer(3).ok()


@check("wire", "A longer line gets an error and the end of the connection.")
def too_long(probe: Probe) -> None:
    """A longer line is refused and ends the connection."""
    wire = probe.connect()
    wire.send(b"x" * MAX_LINE_BYTES)
    wire.answer(None).refused("bad_json")
    if not wire.ends():
        raise BreachError(
            "the end of the connection", "it stays open", "65,536 bytes without a line's end"
        )


@check("errors", "the call is not in this version")
def unknown_call(probe: Probe) -> None:
    """A call that does not exist is refused."""
    probe.ask("tune").refused("unknown_call")
    probe.get()


@check("errors", "a field is missing or has the wrong type; no version in common")
def wrong_types(probe: Probe) -> None:
    """Fields that are missing or of the wrong type are refused, and nothing changes."""
    before = probe.get()
    good = {"owner": probe.owner, "epoch": before["epoch"] + 1, "lease_ms": 1, "values": {}}
    wrongs: tuple[tuple[str, Any], ...] = (
        ("owner", None), ("owner", ""), ("owner", 5), ("owner", "x" * 201),
        ("epoch", None), ("epoch", "1"), ("epoch", 1.5), ("epoch", True),
        ("lease_ms", None), ("lease_ms", "1"), ("lease_ms", [1]), ("lease_ms", False),
        ("values", [1]), ("values", "x"), ("values", 1),
        *(
            ("values", {name: value})
            for name in probe.hello.knobs
            for value in ("8", None, True, [1])
        ),
    )  # fmt: skip
    for name, value in wrongs:
        probe.ask("set", **{**good, name: value}).refused("bad_request")
    for missing in ("owner", "epoch", "lease_ms"):
        kept = {name: value for name, value in good.items() if name != missing}
        probe.ask("set", **kept).refused("bad_request")
    unchanged(before, probe.get())


@check(
    "wire",
    "Whatever a client does (nonsense, half a line, silence, not reading), it must not delay"
    " another client, nor a step.",
)
def bad_company(probe: Probe) -> str:
    """silent, stuck and unread clients do not delay another."""
    probe.connect()
    probe.connect().send(b'{"id":1,"call":')
    unread = probe.connect()
    unread.ask("watch", period_ms=5).ok()
    answer = len(encode(dict(probe.ask("hello").fields)))
    unread.sock.settimeout(0)
    with suppress(OSError):  # an engine may stop reading from it, or close it
        unread.sock.send(encode({"id": 9, "call": "hello"}) * (_MUCH_BYTES // answer))
    took = []
    for _ in range(20):
        began = time.monotonic()
        probe.get()
        took.append(time.monotonic() - began)
    return f"20 answers beside them took {1000 * sum(took) / len(took):.2f} ms each"


@check("wire", "An engine closes a client that leaves 256 KiB unread", thorough=True)
def unread(probe: Probe) -> None:
    """A client that reads nothing is closed."""
    wire = probe.connect()
    line = encode({"id": 1, "call": "hello"})
    answer = len(encode(dict(wire.ask("hello").fields)))
    for _ in range(_UNREAD_BYTES // answer // 100):
        try:
            wire.sock.sendall(line * 100)
        except TimeoutError:
            got = "it stays open, and what is sent is not read any more"
            raise BreachError("the end of the connection", got, shown(line)) from None
        except OSError:
            break
    else:
        raise BreachError(
            "the end of the connection", f"{_UNREAD_BYTES} bytes kept for it", shown(line)
        )
    probe.get()


@check("wire", "beyond 64 clients, the one it has not heard from for longest", thorough=True)
def crowd(probe: Probe) -> None:
    """Of more than 64 clients the quietest goes, and the newest is served."""
    quiet = probe.connect()
    quiet.ask("get").ok()
    crowd: list[Wire] = []
    for _ in range(CROWD):
        crowd.append(probe.connect())
        crowd[-1].ask("get").ok()
    if not quiet.ends():
        raise BreachError(
            "the quietest connection to end", f"{CROWD + 1} stay open", "(connections)"
        )
    crowd[-1].ask("get").ok()
    probe.get()


def unchanged(before: Answer, after: Answer) -> None:
    """`BreachError` unless both show the same state, but for what time does to it."""
    for name in ("start", "owner", "epoch", "prepared_epoch"):
        after.shows(**{name: before[name]})
    after.wants(before.wanted)


CHECKS: Final = (
    ids, pipelining, unknown_fields, empty_lines, pieces, bad_json, longest_line, too_long,
    unknown_call, wrong_types, bad_company, unread, crowd,
)  # fmt: skip
