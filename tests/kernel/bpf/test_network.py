"""What goes wrong on the way, against the counts of a network namespace of these flows only."""

import time

import pytest

from bpf.layout import EndReason
from tests.kernel.bpf.conftest import Flow
from tests.kernel.bpf.network import go_deaf, hear_again
from tests.kernel.bpf.scheduling import wait_for
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    RESET,
    chunk,
    chunked,
    event,
    pause,
    post,
    send,
)

pytestmark = pytest.mark.kernel

BEGUN = CHUNKED_HEAD + chunk(event(1))


def resets(flow: Flow) -> int:
    return flow.network.counted("snmp", "Tcp", "OutRsts")


def test_a_reset_by_the_engine_is_one_sent(flow: Flow) -> None:
    with flow.network.connect(flow.port) as client:
        client.run(send(BEGUN), RESET)
        assert client.read_to_end() == b""
        assert flow.look.end().reason is EndReason.SERVER_CLOSED
    counters = flow.look.counters
    assert (counters.resets_sent, counters.resets_received, resets(flow)) == (1, 0, 1)


def test_a_reset_by_the_client_is_one_received(flow: Flow) -> None:
    with flow.network.connect(flow.port) as client:
        client.run(send(BEGUN))
        client.reset()
        flow.look.end()
    counters = flow.look.counters
    assert (counters.resets_sent, counters.resets_received, resets(flow)) == (0, 1, 1)


def test_ends_without_a_reset_are_none(flow: Flow) -> None:
    with flow.network.connect(flow.port) as client:
        client.run(send(chunked([event(1)])))
    flow.look.end()
    counters = flow.look.counters
    assert (counters.resets_sent, counters.resets_received) == (0, 0)


def test_an_engine_that_does_not_read_closes_its_window(flow: Flow) -> None:
    def closed() -> int:
        return flow.network.counted("netstat", "TcpExt", "TCPToZeroWindowAdv")

    answer = chunked([event(1)])
    head, _, script = post([send(answer)]).partition(b"\r\n\r\n")
    body = script + b" " * (2 << 20)
    with flow.network.connect(flow.port) as client:
        with flow.process.stopped():
            client.write(head.replace(b"%d" % len(script), b"%d" % len(body)) + b"\r\n\r\n")
            client.socket.setblocking(False)
            sent = 0
            while not closed():
                try:
                    sent += client.socket.send(body[sent : sent + 65_536])
                except BlockingIOError:
                    time.sleep(0.001)
        client.socket.settimeout(20)
        client.write(body[sent:])
        assert client.read(len(answer)) == answer
        end = flow.look.end()
    assert end.stream.chunks == 1
    assert flow.look.counters.receive_queue_full == closed() > 0


def test_an_engine_that_reads_in_time_never_closes_its_window(flow: Flow) -> None:
    with flow.network.connect(flow.port) as client:
        client.run(send(chunked([event(1)])))
    assert flow.look.counters.receive_queue_full == 0


@pytest.mark.parametrize("flow", ["127.0.0.1+1"], indirect=True)
def test_a_synack_that_nobody_answers_is_sent_again_and_counted(flow: Flow) -> None:
    def sent_again() -> int:
        return flow.network.counted("netstat", "TcpExt", "TCPSynRetrans")

    # the server takes a client that says nothing for one that did not hear
    with flow.network.connect(flow.port):
        wait_for(lambda: sent_again() >= 1)
        assert flow.look.counters.synack_retransmits == sent_again()
    assert flow.look.counters.retransmits == 0


def test_loss_probes_are_apart_from_timeouts(flow: Flow) -> None:
    def counted(name: str) -> int:
        return flow.network.counted("netstat", "TcpExt", name)

    with flow.network.connect(flow.port) as client:
        client.write(post([send(BEGUN), pause(0.1), send(chunk(event(2)), times=20), send(LAST)]))
        client.read(len(BEGUN))
        before = flow.network.retransmitted()
        go_deaf(client)
        wait_for(lambda: counted("TCPTimeouts") >= 1)
        hear_again(client)
        client.read(20 * len(chunk(event(2))) + len(LAST))
    sent_again = flow.network.retransmitted() - before
    counters = flow.look.counters
    assert counters.loss_probes == counted("TCPLossProbes") >= 1
    assert counters.retransmits == sent_again > counters.loss_probes
