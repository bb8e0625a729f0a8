"""Streams after which their connection goes on."""

from itertools import accumulate, pairwise
from random import Random
from typing import Final

from bpf.layout import EndReason
from tests.bench import frames
from tests.bench.bodies import cut_places, length_head, stream_head, token_chunks, truth_of
from tests.bench.exchange import Exchange, Maker
from tests.bench.frames import Chunk
from tests.bench.truth import Truth
from tests.kernel.bpf.wire import CHUNKED_HEAD, LAST, chunk, send


def _one_chunk_a_write(random: Random) -> Exchange:
    body, _ = token_chunks(random)
    head = stream_head(random)
    wire = [chunk(frames.data_of(each)) for each in body]
    ends = accumulate(map(len, wire), initial=len(head))
    data = head + b"".join(wire) + LAST
    return Exchange(truth_of("one chunk a write", body), (send(data, ends),))


def _chunks_share_packets(random: Random) -> Exchange:
    body, _ = token_chunks(random, 200)
    data = stream_head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    return Exchange(truth_of("chunks share packets", body), (send(data),))


def _chunks_split(random: Random) -> Exchange:
    body, _ = token_chunks(random)
    data = stream_head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    return Exchange(
        truth_of("chunks split over packets", body), (send(data, cut_places(random, data, 40)),)
    )


def _cut_everywhere(random: Random) -> Exchange:
    body, _ = token_chunks(random, 3)
    data = stream_head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    truth = truth_of("cut at every byte", body)
    return Exchange(truth, (send(data, range(1, len(data))),))


def _several_events_a_chunk(random: Random) -> Exchange:
    single, _ = token_chunks(random, 80)
    flat = [frame for each in single for frame in each]
    body: list[Chunk] = []
    while flat:
        size = random.randint(1, 6)
        body.append(tuple(flat[:size]))
        flat = flat[size:]
    data = stream_head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    return Exchange(
        truth_of("several events a chunk", body), (send(data, cut_places(random, data)),)
    )


def _events_across_chunks(random: Random) -> Exchange:
    """As a proxy sends them that divides a body as it likes: a piece of empty lines alone shows
    nothing unless it ends a line or an event."""
    newline = random.choice((b"\n", b"\n", b"\r\n"))
    tokens = [frames.completion(random, newline) for _ in range(random.randint(1, 40))]
    whole = frames.data_of(tuple(tokens))
    cuts = sorted({0, *cut_places(random, whole, 30), len(whole)})
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
    return Exchange(truth, (send(data, cut_places(random, data)),))


def _extensions_and_trailers(random: Random) -> Exchange:
    body, _ = token_chunks(random)
    wire = []
    for each in body:
        data = frames.data_of(each)
        size = random.choice((b"%x", b"%X", b"000%x")) % len(data)
        extension = random.choice((b"", b";name=value", b'; quoted="; 5"'))
        wire.append(size + extension + b"\r\n" + data + b"\r\n")
    last = random.choice((LAST, b"000\r\n\r\n", b"0\r\nX-Tokens: 2\r\nX-Sum: 1\r\n\r\n"))
    data = stream_head(random) + b"".join(wire) + last
    truth = truth_of("extensions and trailers", body)
    return Exchange(truth, (send(data, cut_places(random, data)),))


def _long_chunks(random: Random) -> Exchange:
    lengths = [random.randint(20_000, 300_000) for _ in range(random.randint(1, 3))]
    payloads = [b"data: " + b"y" * length + b"\n\n" for length in lengths]
    data = CHUNKED_HEAD + b"".join(map(chunk, payloads)) + LAST
    number, size = len(payloads), sum(map(len, payloads))
    truth = Truth("long chunks", EndReason.COMPLETE, number, size, number, is_events=True)
    return Exchange(truth, (send(data, cut_places(random, data)),))


def slow(random: Random) -> Exchange:
    body, _ = token_chunks(random, 400)
    wire = [chunk(frames.data_of(each)) for each in body]
    ends = accumulate(map(len, wire), initial=len(CHUNKED_HEAD))
    data = CHUNKED_HEAD + b"".join(wire) + LAST
    return Exchange(truth_of("slow readers", body), (send(data, ends),))


def _continue(random: Random) -> Exchange:
    body, _ = token_chunks(random)
    hints = random.choice((b"", b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>\r\n\r\n"))
    data = (
        hints + stream_head(random) + b"".join(chunk(frames.data_of(each)) for each in body) + LAST
    )
    truth = truth_of("100 and 103 before", body)
    return Exchange(
        truth, (send(data, cut_places(random, data)),), headers=b"Expect: 100-continue\r\n"
    )


# other bodies


def _plain_chunked(random: Random) -> Exchange:
    payloads = [random.randbytes(random.randint(1, 300)) for _ in range(random.randint(0, 20))]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"".join(map(chunk, payloads)) + LAST
    size = sum(map(len, payloads))
    truth = Truth("chunks of no events", EndReason.COMPLETE, len(payloads), size)
    return Exchange(truth, (send(data, cut_places(random, data)),))


def _content_length(random: Random) -> Exchange:
    size = random.choice((1, 30, 2_000, 150_000)) + random.randint(0, 30)
    data = length_head(size) + b"x" * size
    truth = Truth("whole answers", EndReason.COMPLETE, body_bytes=size)
    return Exchange(truth, (send(data, cut_places(random, data)),))


def _empty(random: Random) -> Exchange:
    status, head = random.choice(
        (
            (200, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            (204, b"HTTP/1.1 204 No Content\r\n\r\n"),
            (304, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 400\r\n\r\n"),
        )
    )
    truth = Truth("empty answers", EndReason.COMPLETE, status=status)
    return Exchange(truth, (send(head, cut_places(random, head, 3)),))


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
    return Exchange(truth, (send(length_head(len(body), line) + body),))


GOING_ON: Final[dict[Maker, int]] = {
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
