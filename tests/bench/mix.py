"""Connections of streams of every kind, from a seeded generator, with what is true of each stream.

Nothing here depends on time: which bytes leave the server before a stream ends is settled by the
script and by what the client does, so that every count can be held to be exact.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

from tests.bench.endings import LAST_ONES
from tests.bench.exchange import ADDRESSES, Connection
from tests.bench.going_on import GOING_ON, slow


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
        return Connection(address, (slow(random),), receive_buffer=1)
    length = random.choice((1, 1, 1, 2, 3, 5, 8, 20))
    makers = random.choices(tuple(GOING_ON), tuple(GOING_ON.values()), k=length)
    exchanges = [maker(random) for maker in makers]
    if random.random() < 0.5:
        last = random.choices(tuple(LAST_ONES), tuple(LAST_ONES.values()))[0]
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
