"""TLS and HTTP/2: the turns on such a connection are timed by what is written, and told as such."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator

import grpc  # type: ignore[import-untyped]
import pytest

from bpf.layout import Counters, EndReason, EventKind, StreamFlags
from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import Engine, server
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    Client,
    chunk,
    chunked,
    event,
    pause,
    post,
    send,
)

pytestmark = pytest.mark.kernel

PAUSE_NS = 20_000_000
EVENT = chunk(event(1) * 5)
OF_STREAMS = (
    "requests",
    "responses",
    "first_chunks",
    "ttft_sum_ns",
    "chunks",
    "events",
    "gaps",
    "body_bytes",
    "ends_complete",
    "ends_early",
    "ends_unstarted",
)


def assert_counted_apart(counters: Counters, turns: int) -> None:
    assert counters.opaque == turns
    assert {name: getattr(counters, name) for name in OF_STREAMS} == dict.fromkeys(OF_STREAMS, 0)


@pytest.fixture(scope="module")
def tls_port(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A followed server that speaks TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    both = tmp_path_factory.mktemp("tls") / "server.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*make.split(), "-keyout", both, "-out", both.with_suffix(".crt")],
        check=True,
        capture_output=True,
    )
    with both.open("a") as file:
        file.write(both.with_suffix(".crt").read_text())
    with server(engine.group, f"127.0.0.1+{both}") as (_, (port,)):
        engine.watch(port)
        yield port
    engine.watch()


def over_tls(port: int, version: ssl.TLSVersion) -> Client:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    return Client(context.wrap_socket(Client.to(port).socket))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_turns_over_tls_are_timed_by_write_from_the_second_on(
    engine: Engine, tls_port: int, version: ssl.TLSVersion
) -> None:
    look = engine.look()
    wait = pause(PAUSE_NS / 1e9)
    with over_tls(tls_port, version) as client:
        client.run(send(chunked([event(1) * 5])))
        client.run(wait, send(CHUNKED_HEAD), wait, send(EVENT), send(LAST))
        client.run(wait, send(CHUNKED_HEAD + EVENT), send(EVENT), send(LAST))
    second, third = look.ends(2)
    assert_counted_apart(look.counters, 3)
    assert [end.stream.number for end in (second, third)] == [1, 2]
    for end in (second, third):
        assert end.reason is EndReason.COMPLETE
        assert end.stream.flags == StreamFlags.OPAQUE
        assert end.stream.chunks == 2  # the last chunk is too short to tell from TLS's own
        assert (end.stream.ttft_ns or 0) >= PAUSE_NS
    assert second.stream.gap_max_ns >= PAUSE_NS
    firsts = look.of_kind(EventKind.FIRST)
    assert [first.stream.ttft_ns for first in firsts] == [
        second.stream.ttft_ns,
        third.stream.ttft_ns,
    ]
    assert [start.head for start in look.of_kind(EventKind.START)] == [b"", b""]


def test_a_tls_client_that_gives_up_ends_its_turn_early(engine: Engine, tls_port: int) -> None:
    look = engine.look()
    with over_tls(tls_port, ssl.TLSVersion.TLSv1_3) as client:
        client.run(send(chunked([event(1) * 5])))
        client.write(post([send(CHUNKED_HEAD + EVENT), pause(0.1)]))
        client.read(len(CHUNKED_HEAD + EVENT))
        client.reset()
        end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.CLIENT_RESET, 1)
    assert_counted_apart(look.counters, 2)


def test_turns_of_grpc_are_timed_by_write_from_the_second_on(engine: Engine) -> None:
    with child("grpc_server.py", group=engine.group) as process:
        process.tell()
        port = int(process.answer())
        engine.watch(port)
        look = engine.look()
        request = f"4 {PAUSE_NS / 1e9} ".encode() + b"x" * 200
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            generate = channel.unary_stream("/engine/Generate")
            for _ in range(3):
                assert list(generate(request)) == [b"x" * 100] * 4
        second, third = look.ends(2)
        assert_counted_apart(look.counters, 3)
    engine.watch()
    for end in (second, third):
        assert end.stream.flags == StreamFlags.OPAQUE
        assert end.stream.chunks in {4, 5}  # a head may leave on its own
        assert end.stream.gap_max_ns >= PAUSE_NS // 2


@pytest.mark.parametrize(
    "greeting",
    [
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + b"\x03" * 90,  # ZeroMQ's
        b"\x16\x03\x01\x02\x00\x02" + b"x" * 90,  # a record that is no ClientHello
        b"PRINT * HTTP/1.1\r\n\r\n" + b"x" * 90,
    ],
)
def test_other_protocols_are_left_alone(engine: Engine, greeting: bytes) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.write(greeting)
        client.write(greeting)
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1)])))
    look.end()
    assert look.counters.opaque == 0
