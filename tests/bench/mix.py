"""Connections of streams of every kind, from a seeded generator, with what is true of each stream.

Nothing here depends on time: which bytes leave the server before a stream ends is settled by the
script and by what the client does, so that every count can be held to be exact.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate, count, pairwise
from random import Random
from typing import Final

from bpf.layout import EndReason
from tests.bench import frames
from tests.bench.frames import Chunk
from tests.bench.truth import Truth
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    LAST,
    RESET,
    Step,
    chunk,
    give_up_after,
    send,
    sent_by,
)

ADDRESSES: Final = ("127.0.0.1", "::1", "::", "127.0.0.1+5")
"""What the server listens on; clients of `::` come in over IPv4.

The last takes a connection up once its first data came, which so comes with the handshake."""

VANISH_OVER_BYTES: Final = 700
"""A client that vanished takes no longer packet than this."""


class Then(Enum):
    """What the client does when it has read what it wants."""

    GO_ON = auto()
    READ_TO_END = auto()
    CLOSE = auto()
    RESET = auto()
    VANISH = auto()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what comes of it.

    The client reads `read` bytes (all, when None) and goes on. `cut` is where its request is cut.
    """

    truth: Truth
    script: tuple[Step, ...]
    headers: bytes = b""
    read: int | None = None
    then: Then = Then.GO_ON
    half_close: bool = False
    cut: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """Exchanges on one connection; between some of them another request, which is no stream."""

    address: int
    exchanges: tuple[Exchange, ...]
    receive_buffer: int | None = None
    others: bool = False

    @property
    def vanishes(self) -> bool:
        """Whether its client goes without a word."""
        return self.exchanges[-1].then is Then.VANISH


def connections(seed: int, streams: int | None = None) -> Iterator[Connection]:
    """Connections with `streams` streams together, or without end; the same ones for one seed."""
    numbers = count(1)
    made = 0
    while streams is None or made < streams:
        random = Random(f"{seed}/{made}")
        connection = _connection(random)
        left = len(connection.exchanges) if streams is None else streams - made
        exchanges = tuple(
            replace(each, number=next(numbers)) for each in connection.exchanges[-left:]
        )
        made += len(exchanges)
        yield replace(connection, exchanges=exchanges)


def _connection(random: Random) -> Connection:
    address = random.choices(range(len(ADDRESSES)), (5, 3, 1, 1))[0]
    if random.random() < 0.04:
        return Connection(address, (_slow(random),), receive_buffer=1)
    length = random.choice((1, 1, 1, 2, 3, 5, 8, 20))
    makers = random.choices(tuple(_GOING_ON), tuple(_GOING_ON.values()), k=length)
    exchanges = [maker(random) for maker in makers]
    if random.random() < 0.5:
        last = random.choices(tuple(_LAST), tuple(_LAST.values()))[0]
        exchanges[-1] = last(random)
    deferred = "+" in ADDRESSES[address]
    exchanges = [
        each if at == 0 and deferred else replace(each, cut=_request_cut(random))
        for at, each in enumerate(exchanges)
    ]
    return Connection(address, tuple(exchanges), others=random.random() < 0.3)


def _request_cut(random: Random) -> int | None:
    """Within the method, or past what names the stream."""
    return random.choice((None,) * 6 + (random.randint(1, 4), random.randint(120, 140)))


# bodies of events


def _tokens(random: Random, most: int = 40) -> tuple[list[Chunk], bytes]:
    """A body of events, one a chunk, and its newline: a completion or a chat, with or without
    comments and the mark."""
    newline = b"\r\n" if random.random() < 0.1 else b"\n"
    is_chat = random.random() < 0.5
    one = frames.chat if is_chat else frames.completion
    made = [one(random, newline) for _ in range(random.randint(1, most))]
    if random.random() < 0.1:
        made.insert(random.randint(0, len(made)), frames.named(random, newline))
    if random.random() < 0.15:
        for _ in range(random.randint(1, 3)):
            made.insert(random.randint(0, len(made)), frames.comment(newline))
    if is_chat and random.random() < 0.8:
        made[:0] = [frames.role(random, newline) for _ in range(random.choice((1, 1, 2)))]
    if random.random() < 0.8:
        made.append(frames.done(newline))
    return [(each,) for each in made], newline


def _truth(kind: str, body: list[Chunk], reason: EndReason = EndReason.COMPLETE) -> Truth:
    counted = frames.count(body)
    return Truth(
        kind,
        reason,
        counted.chunks,
        sum(len(frames.data_of(each)) for each in body),
        counted.events,
        counted.role_frames,
        is_events=True,
    )


def _head(random: Random) -> bytes:
    """A chunked event stream's head, of any case, some with more headers."""
    status, _, headers = CHUNKED_HEAD.partition(b"\r\n")
    headers = random.choice((bytes, bytes, bytes.lower, bytes.upper))(headers)
    more = b"".join(b"x-header-%d: %b\r\n" % (n, b"v" * n) for n in range(random.choice((0, 0, 9))))
    return status + b"\r\n" + more + headers


def _cuts(random: Random, data: bytes, most: int = 12) -> list[int]:
    """Where to cut a response into writes."""
    wanted = min(random.randint(0, most), len(data) - 1)
    return random.sample(range(1, len(data)), wanted) if wanted > 0 else []


def _one_chunk_a_write(random: Random) -> Exchange:
    body, _ = _tokens(random)
    head = _head(random)
    wire = [chunk(frames.data_of(each)) for each in body]
    ends = accumulate(map(len, wire), initial=len(head))
    data = head + b"".join(wire) + LAST
    return Exchange(_truth("one chunk a write", body), (send(data, ends),))


def _chunks_share_packets(random: Random) -> Exchange:
    body, _ = _tokens(random, 200)
    data = _head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    return Exchange(_truth("chunks share packets", body), (send(data),))


def _chunks_split(random: Random) -> Exchange:
    body, _ = _tokens(random)
    data = _head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    return Exchange(
        _truth("chunks split over packets", body), (send(data, _cuts(random, data, 40)),)
    )


def _cut_everywhere(random: Random) -> Exchange:
    body, _ = _tokens(random, 3)
    data = _head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    truth = _truth("cut at every byte", body)
    return Exchange(truth, (send(data, range(1, len(data))),))


def _several_events_a_chunk(random: Random) -> Exchange:
    single, _ = _tokens(random, 80)
    flat = [frame for each in single for frame in each]
    body: list[Chunk] = []
    while flat:
        size = random.randint(1, 6)
        body.append(tuple(flat[:size]))
        flat = flat[size:]
    data = _head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    return Exchange(_truth("several events a chunk", body), (send(data, _cuts(random, data)),))


def _events_across_chunks(random: Random) -> Exchange:
    """As a proxy sends them that divides a body as it likes: a piece of empty lines alone shows
    nothing unless it ends a line or an event."""
    newline = random.choice((b"\n", b"\n", b"\r\n"))
    tokens = [frames.completion(random, newline) for _ in range(random.randint(1, 40))]
    whole = frames.data_of(tuple(tokens))
    cuts = sorted({0, *_cuts(random, whole, 30), len(whole)})
    pieces = [whole[a:b] for a, b in pairwise(cuts)]
    ended = [whole[:at].count(newline * 2) for at in cuts]
    shown = [
        bool(whole[a:b].strip(b"\r\n"))
        or not whole[:a].endswith((b"\n", b"\n\r"))
        or ended[at] < ended[at + 1]
        for at, (a, b) in enumerate(pairwise(cuts))
    ]
    truth = Truth(
        "events across chunks",
        EndReason.COMPLETE,
        sum(shown),
        len(whole),
        len(tokens),
        is_events=True,
    )
    data = CHUNKED_HEAD + b"".join(map(chunk, pieces)) + LAST
    return Exchange(truth, (send(data, _cuts(random, data)),))


def _extensions_and_trailers(random: Random) -> Exchange:
    body, _ = _tokens(random)
    wire = []
    for each in body:
        data = frames.data_of(each)
        size = random.choice((b"%x", b"%X", b"000%x")) % len(data)
        extension = random.choice((b"", b";name=value", b'; quoted="; 5"'))
        wire.append(size + extension + b"\r\n" + data + b"\r\n")
    last = random.choice((LAST, b"000\r\n\r\n", b"0\r\nX-Tokens: 2\r\nX-Sum: 1\r\n\r\n"))
    data = _head(random) + b"".join(wire) + last
    truth = _truth("extensions and trailers", body)
    return Exchange(truth, (send(data, _cuts(random, data)),))


def _long_chunks(random: Random) -> Exchange:
    lengths = [random.randint(20_000, 300_000) for _ in range(random.randint(1, 3))]
    payloads = [b"data: " + b"y" * length + b"\n\n" for length in lengths]
    data = CHUNKED_HEAD + b"".join(map(chunk, payloads)) + LAST
    number, size = len(payloads), sum(map(len, payloads))
    truth = Truth("long chunks", EndReason.COMPLETE, number, size, number, is_events=True)
    return Exchange(truth, (send(data, _cuts(random, data)),))


def _slow(random: Random) -> Exchange:
    body, _ = _tokens(random, 400)
    wire = [chunk(frames.data_of(each)) for each in body]
    ends = accumulate(map(len, wire), initial=len(CHUNKED_HEAD))
    data = CHUNKED_HEAD + b"".join(wire) + LAST
    return Exchange(_truth("slow readers", body), (send(data, ends),))


def _continue(random: Random) -> Exchange:
    body, _ = _tokens(random)
    hints = random.choice((b"", b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>\r\n\r\n"))
    data = hints + _head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    truth = _truth("100 and 103 before", body)
    return Exchange(truth, (send(data, _cuts(random, data)),), headers=b"Expect: 100-continue\r\n")


# other bodies


def _plain_chunked(random: Random) -> Exchange:
    payloads = [random.randbytes(random.randint(1, 300)) for _ in range(random.randint(0, 20))]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"".join(map(chunk, payloads)) + LAST
    size = sum(map(len, payloads))
    truth = Truth("chunks of no events", EndReason.COMPLETE, len(payloads), size)
    return Exchange(truth, (send(data, _cuts(random, data)),))


def _length_head(length: int, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        status,
        length,
    )


def _content_length(random: Random) -> Exchange:
    size = random.choice((1, 30, 2_000, 150_000)) + random.randint(0, 30)
    data = _length_head(size) + b"x" * size
    truth = Truth("whole answers", EndReason.COMPLETE, body_bytes=size)
    return Exchange(truth, (send(data, _cuts(random, data)),))


def _empty(random: Random) -> Exchange:
    status, head = random.choice(
        (
            (200, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            (204, b"HTTP/1.1 204 No Content\r\n\r\n"),
            (304, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 400\r\n\r\n"),
        )
    )
    truth = Truth("empty answers", EndReason.COMPLETE, status=status)
    return Exchange(truth, (send(head, _cuts(random, head, 3)),))


def _error(random: Random) -> Exchange:
    status, reason = random.choice(
        (
            (400, b"Bad Request"),
            (404, b"Not Found"),
            (422, b"Unprocessable Entity"),
            (429, b"Too Many Requests"),
            (500, b"Internal Server Error"),
            (503, b"Service Unavailable"),
        )
    )
    body = b'{"error":{"message":"%b"}}' % (b"m" * random.randint(0, 200))
    line = b"%d %b" % (status, reason)
    if random.random() < 0.3:
        head = b"HTTP/1.1 %b\r\nTransfer-Encoding: chunked\r\n\r\n" % line
        truth = Truth("errors", EndReason.COMPLETE, 1, len(body), status=status)
        return Exchange(truth, (send(head + chunk(body) + LAST),))
    truth = Truth("errors", EndReason.COMPLETE, body_bytes=len(body), status=status)
    return Exchange(truth, (send(_length_head(len(body), line) + body),))


# what ends a connection


def _until_close(random: Random) -> Exchange:
    if random.random() < 0.3:
        body = random.randbytes(random.randint(0, 5_000))
        data = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
        truth = Truth("until close", EndReason.COMPLETE, body_bytes=len(body))
    else:
        chunks, _ = _tokens(random)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        data = head + b"".join(map(frames.data_of, chunks))
        truth = _truth("until close", chunks)
    return Exchange(truth, (send(data, _cuts(random, data)), CLOSE), then=Then.READ_TO_END)


def _begun(random: Random, kind: str, reason: EndReason) -> tuple[Truth, bytes]:
    """A chunked answer that breaks off somewhere after its head."""
    body, _ = _tokens(random)
    wire = [chunk(frames.data_of(each)) for each in body]
    whole = random.randint(0, len(wire) - 1)
    part = wire[whole][: random.choice((0, random.randint(0, len(wire[whole]) - 3)))]
    truth = _truth(kind, body[:whole], reason)
    _, _, payload = part.partition(b"\r\n")
    truth = replace(truth, body_bytes=truth.body_bytes + len(payload))
    return truth, CHUNKED_HEAD + b"".join(wire[:whole]) + part


def _client_resets(random: Random) -> Exchange:
    truth, data = _begun(random, "clients that reset", EndReason.CLIENT_RESET)
    return Exchange(truth, (send(data, _cuts(random, data)),), then=Then.RESET)


def _client_resets_unanswered(_random: Random) -> Exchange:
    truth = Truth("clients that reset unanswered", EndReason.CLIENT_RESET, status=0)
    return Exchange(truth, (), then=Then.RESET)


def _client_leaves(random: Random) -> Exchange:
    """Its kernel answers what comes after with a reset."""
    body, _ = _tokens(random)
    wire = [chunk(frames.data_of(each)) for each in body]
    whole = random.randint(0, len(wire) - 1)
    first = CHUNKED_HEAD + b"".join(wire[:whole])
    truth = _truth("clients that close", body[: whole + 1], EndReason.CLIENT_RESET)
    script = (send(first), send(wire[whole]))
    return Exchange(truth, script, read=len(first), then=Then.CLOSE)


def _client_vanishes(random: Random) -> Exchange:
    newline = b"\n"
    body: list[Chunk] = [(frames.completion(random, newline),) for _ in range(random.randint(0, 3))]
    first = CHUNKED_HEAD + b"".join(chunk(frames.data_of(each)) for each in body)
    rest = [
        b"data: " + b"z" * (VANISH_OVER_BYTES + n) + b"\n\n" for n in range(random.randint(1, 3))
    ]
    truth = _truth("clients that vanish", body, EndReason.CLOSED)
    truth = replace(
        truth,
        chunks=truth.chunks + len(rest),
        events=truth.events + len(rest),
        body_bytes=truth.body_bytes + sum(map(len, rest)),
    )
    script = (give_up_after(100), send(first), *(send(chunk(each)) for each in rest))
    return Exchange(truth, script, read=len(first), then=Then.VANISH)


def _server_closes(random: Random) -> Exchange:
    truth, data = _begun(random, "servers that close early", EndReason.SERVER_CLOSED)
    return Exchange(truth, (send(data, _cuts(random, data)), CLOSE), then=Then.READ_TO_END)


def _server_closes_unanswered(_random: Random) -> Exchange:
    truth = Truth("servers that close unanswered", EndReason.SERVER_CLOSED, status=0)
    return Exchange(truth, (CLOSE,), then=Then.READ_TO_END)


def _server_resets(random: Random) -> Exchange:
    truth, data = _begun(random, "servers that reset", EndReason.SERVER_CLOSED)
    return Exchange(truth, (send(data), RESET), read=0, then=Then.READ_TO_END)


def _length_cut_short(random: Random) -> Exchange:
    size = random.randint(2, 3_000)
    sent = random.randint(0, size - 1)
    data = _length_head(size) + b"x" * sent
    truth = Truth("whole answers cut short", EndReason.SERVER_CLOSED, body_bytes=sent)
    return Exchange(truth, (send(data, _cuts(random, data)), CLOSE), then=Then.READ_TO_END)


def _not_http(random: Random) -> Exchange:
    if random.random() < 0.5:
        answer = random.choice(
            (b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\1\2 not this \xff", b"HTTP/1.1 abc\r\n\r\n")
        )
        truth = Truth("no HTTP", EndReason.LOST, status=0)
    else:
        body, _ = _tokens(random, 5)
        answer = CHUNKED_HEAD + b"".join(chunk(frames.data_of(each)) for each in body)
        answer += random.choice((b"no size\r\n", b"fffffffffffffffff\r\n"))
        truth = _truth("no HTTP", body, EndReason.LOST)
    return Exchange(truth, (send(answer),), then=Then.CLOSE)


def _half_closes(random: Random) -> Exchange:
    body, _ = _tokens(random)
    data = _head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    truth = _truth("clients that only listen", body)
    script = (send(data, _cuts(random, data)),)
    return Exchange(truth, script, half_close=True, then=Then.READ_TO_END)


Maker = Callable[[Random], Exchange]

_GOING_ON: Final[dict[Maker, int]] = {
    _one_chunk_a_write: 20,
    _chunks_share_packets: 10,
    _chunks_split: 15,
    _cut_everywhere: 2,
    _several_events_a_chunk: 10,
    _events_across_chunks: 6,
    _extensions_and_trailers: 6,
    _long_chunks: 4,
    _continue: 4,
    _plain_chunked: 5,
    _content_length: 10,
    _empty: 3,
    _error: 5,
}
"""Makers of streams after which a connection goes on, and how often each is taken."""

_LAST: Final[dict[Maker, int]] = {
    _until_close: 20,
    _client_resets: 10,
    _client_resets_unanswered: 5,
    _client_leaves: 10,
    _client_vanishes: 5,
    _server_closes: 10,
    _server_closes_unanswered: 5,
    _server_resets: 10,
    _length_cut_short: 5,
    _not_http: 5,
    _half_closes: 5,
}
"""Makers of streams that end their connection."""


def all_bytes(exchange: Exchange) -> bytes:
    """What the server sends of an exchange."""
    before = b"HTTP/1.1 100 Continue\r\n\r\n" if exchange.headers else b""
    return before + sent_by(exchange.script)
