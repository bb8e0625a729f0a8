from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines.haproxy.gate import Gate, Server, haproxy
from tests.engines.reference_process import Running, reference_engine

MAXCONN = {"a": 4, "b": 2, "standby": 3}


@pytest.fixture(scope="package")
def engines() -> Iterator[tuple[Running, Running]]:
    """Two engines with no knob that HAProxy knows of."""
    with reference_engine() as first, reference_engine() as second:
        yield first, second


def servers(engines: tuple[Running, Running]) -> list[Server]:
    """Two of one size and another that stands by, in front of the two."""
    first, second = engines
    return [
        Server("a", first.port, MAXCONN["a"]),
        Server("b", second.port, MAXCONN["b"]),
        Server("standby", second.port, MAXCONN["standby"], is_backup=True),
    ]


@pytest.fixture
def gate(engines: tuple[Running, Running], tmp_path: Path) -> Iterator[Gate]:
    with ExitStack() as stack:
        yield stack.enter_context(haproxy(tmp_path, servers(engines)))
