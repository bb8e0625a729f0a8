"""Bodies of events and heads of answers, and where both are cut into writes."""

from random import Random

from bpf.layout import EndReason
from tests.bench import frames
from tests.bench.frames import Chunk
from tests.bench.truth import Truth
from tests.kernel.bpf.wire import CHUNKED_HEAD


def token_chunks(random: Random, most: int = 40) -> tuple[list[Chunk], bytes]:
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


def truth_of(kind: str, body: list[Chunk], reason: EndReason = EndReason.COMPLETE) -> Truth:
    """What is true of a stream of exactly these chunks."""
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


def stream_head(random: Random) -> bytes:
    """A chunked event stream's head, of any case, some with more headers."""
    status, _, headers = CHUNKED_HEAD.partition(b"\r\n")
    headers = random.choice((bytes, bytes, bytes.lower, bytes.upper))(headers)
    more = b"".join(b"x-header-%d: %b\r\n" % (n, b"v" * n) for n in range(random.choice((0, 0, 9))))
    return status + b"\r\n" + more + headers


def cut_places(random: Random, data: bytes, most: int = 12) -> list[int]:
    """Where to cut a response into writes."""
    wanted = min(random.randint(0, most), len(data) - 1)
    return random.sample(range(1, len(data)), wanted) if wanted > 0 else []


def length_head(length: int, status: bytes = b"200 OK") -> bytes:
    """The head of an answer whose length is known."""
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        status,
        length,
    )
