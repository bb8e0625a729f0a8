"""Streams that end their connection: by whose doing, and how far they came."""

from dataclasses import replace
from random import Random
from typing import Final

from bpf.layout import EndReason
from tests.bench import frames
from tests.bench.bodies import cut_places, length_head, stream_head, token_chunks, truth_of
from tests.bench.exchange import VANISH_OVER_BYTES, Exchange, Maker, Then
from tests.bench.frames import Chunk
from tests.bench.truth import Truth
from tests.kernel.bpf.wire import CHUNKED_HEAD, CLOSE, LAST, RESET, chunk, give_up_after, send


def _until_close(random: Random) -> Exchange:
    if random.random() < 0.3:
        body = random.randbytes(random.randint(0, 5_000))
        data = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
        truth = Truth("until close", EndReason.COMPLETE, body_bytes=len(body))
    else:
        chunks, _ = token_chunks(random)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        data = head + b"".join(map(frames.data_of, chunks))
        truth = truth_of("until close", chunks)
    return Exchange(truth, (send(data, cut_places(random, data)), CLOSE), then=Then.READ_TO_END)


def _begun(random: Random, kind: str, reason: EndReason) -> tuple[Truth, bytes]:
    """A chunked answer that breaks off somewhere after its head."""
    body, _ = token_chunks(random)
    wire = [chunk(frames.data_of(each)) for each in body]
    whole = random.randint(0, len(wire) - 1)
    part = wire[whole][: random.choice((0, random.randint(0, len(wire[whole]) - 3)))]
    truth = truth_of(kind, body[:whole], reason)
    _, _, payload = part.partition(b"\r\n")
    truth = replace(truth, body_bytes=truth.body_bytes + len(payload))
    return truth, CHUNKED_HEAD + b"".join(wire[:whole]) + part


def _client_resets(random: Random) -> Exchange:
    truth, data = _begun(random, "clients that reset", EndReason.CLIENT_RESET)
    return Exchange(truth, (send(data, cut_places(random, data)),), then=Then.RESET)


def _client_resets_unanswered(_random: Random) -> Exchange:
    truth = Truth("clients that reset unanswered", EndReason.CLIENT_RESET, status=0)
    return Exchange(truth, (), then=Then.RESET)


def _client_leaves(random: Random) -> Exchange:
    """Its kernel answers what comes after with a reset."""
    body, _ = token_chunks(random)
    wire = [chunk(frames.data_of(each)) for each in body]
    whole = random.randint(0, len(wire) - 1)
    first = CHUNKED_HEAD + b"".join(wire[:whole])
    truth = truth_of("clients that close", body[: whole + 1], EndReason.CLIENT_RESET)
    script = (send(first), send(wire[whole]))
    return Exchange(truth, script, read=len(first), then=Then.CLOSE)


def _client_vanishes(random: Random) -> Exchange:
    newline = b"\n"
    body: list[Chunk] = [(frames.completion(random, newline),) for _ in range(random.randint(0, 3))]
    first = CHUNKED_HEAD + b"".join(chunk(frames.data_of(each)) for each in body)
    rest = [
        b"data: " + b"z" * (VANISH_OVER_BYTES + n) + b"\n\n" for n in range(random.randint(1, 3))
    ]
    truth = truth_of("clients that vanish", body, EndReason.CLOSED)
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
    return Exchange(truth, (send(data, cut_places(random, data)), CLOSE), then=Then.READ_TO_END)


def _server_closes_unanswered(_random: Random) -> Exchange:
    truth = Truth("servers that close unanswered", EndReason.SERVER_CLOSED, status=0)
    return Exchange(truth, (CLOSE,), then=Then.READ_TO_END)


def _server_resets(random: Random) -> Exchange:
    truth, data = _begun(random, "servers that reset", EndReason.SERVER_CLOSED)
    return Exchange(truth, (send(data), RESET), read=0, then=Then.READ_TO_END)


def _length_cut_short(random: Random) -> Exchange:
    size = random.randint(2, 3_000)
    sent = random.randint(0, size - 1)
    data = length_head(size) + b"x" * sent
    truth = Truth("whole answers cut short", EndReason.SERVER_CLOSED, body_bytes=sent)
    return Exchange(truth, (send(data, cut_places(random, data)), CLOSE), then=Then.READ_TO_END)


def _not_http(random: Random) -> Exchange:
    if random.random() < 0.5:
        answer = random.choice(
            (b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\1\2 not this \xff", b"HTTP/1.1 abc\r\n\r\n")
        )
        truth = Truth("no HTTP", EndReason.LOST, status=0)
    else:
        body, _ = token_chunks(random, 5)
        answer = CHUNKED_HEAD + b"".join(chunk(frames.data_of(each)) for each in body)
        answer += random.choice((b"no size\r\n", b"fffffffffffffffff\r\n"))
        truth = truth_of("no HTTP", body, EndReason.LOST)
    return Exchange(truth, (send(answer),), then=Then.CLOSE)


def _half_closes(random: Random) -> Exchange:
    body, _ = token_chunks(random)
    data = stream_head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    truth = truth_of("clients that only listen", body)
    script = (send(data, cut_places(random, data)),)
    return Exchange(truth, script, half_close=True, then=Then.READ_TO_END)


LAST_ONES: Final[dict[Maker, int]] = {
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
