"""A short run of the bench of accuracy, and answers that it once found miscounted."""

import pytest

from bpf.features import Features
from bpf.libbpf import Libbpf
from tests.bench import blocked, streams
from tests.bench.ground import Ground
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.streams import assert_complete
from tests.kernel.bpf.wire import CHUNKED_HEAD, CLOSE, LAST, Client, chunk, send
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel


@pytest.fixture
def ground(lib: Libbpf, features: Features, make_cgroup: MakeGroup) -> Ground:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    return Ground(lib, features, make_cgroup)


def test_streams_of_mixed_kinds_are_seen_as_they_were(ground: Ground) -> None:
    found = streams.measure(ground, 300, 1)
    assert found["client_faults"] == []
    assert (found["mismatches"], found["total_mismatch"]) == ([], {})
    assert (found["count"], found["missing"], found["unknown_ends"]) == (300, 0, 0)
    assert found["lost"][0] == found["lost"][1]


def test_held_time_is_within_five_percent_of_tcp_infos(ground: Ground) -> None:
    found = blocked.measure(ground, streams=12)
    assert found["compared"] > 0
    assert found["error_percent_max"] <= 5


def test_an_ipv6_answer_in_packets_of_more_than_64_kib_is_followed(engine: Engine) -> None:
    if not engine.ports6:
        pytest.skip("this machine has no IPv6 loopback")
    payload = b"data: " + b"y" * 1_000_000 + b"\n\n"
    look = engine.look()
    with Client.to(engine.ports6[0], "::1") as client:
        client.run(send(CHUNKED_HEAD + chunk(payload) + LAST))
        assert_complete(look.end(), 1, len(payload))


def test_the_bytes_of_a_body_until_close_are_counted(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000, [9, 100]), CLOSE)
        assert client.read_to_end() == b""
    assert_complete(look.end(), 0, 5_000)
