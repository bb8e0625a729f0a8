"""What goes wrong on the way, against the counts of a network namespace of these flows only."""

import time
from collections.abc import Iterator
from functools import partial

import pytest

from bpf.layout import EndReason
from tests.kernel.bpf.conftest import Flow
from tests.kernel.bpf.network import go_deaf, hear_again, some_run_is_exact
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
    sent_by,
)

pytestmark = pytest.mark.kernel

RUNS = 6
BEGUN = CHUNKED_HEAD + chunk(event(1))
SCRIPT = [send(BEGUN), pause(0.1), send(chunk(event(2)), times=20), send(LAST)]


def test_a_reset_by_the_engine_is_one_sent(flow: Flow) -> None:
    def run() -> Iterator[tuple[int, int]]:
        for number in range(1, 1 + RUNS):
            before = flow.look.counters.resets_sent
            with flow.network.connect(flow.port) as client:
                client.run(send(BEGUN), RESET)
                assert client.read_to_end() == b""
                assert flow.look.ends(number)[-1].reason is EndReason.SERVER_CLOSED
            assert flow.network.counted("snmp", "Tcp", "OutRsts") == number
            yield flow.look.counters.resets_sent - before, 1

    assert some_run_is_exact(run())
    assert flow.look.counters.resets_received == 0


def test_a_reset_by_the_client_is_one_received(flow: Flow) -> None:
    def run() -> Iterator[tuple[int, int]]:
        for number in range(1, 1 + RUNS):
            before = flow.look.counters.resets_received
            with flow.network.connect(flow.port) as client:
                client.run(send(BEGUN))
                client.reset()
                flow.look.ends(number)
            assert flow.network.counted("snmp", "Tcp", "OutRsts") == number
            yield flow.look.counters.resets_received - before, 1

    assert some_run_is_exact(run())
    assert flow.look.counters.resets_sent == 0


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
    def has_been(times: int) -> bool:
        return flow.network.counted("netstat", "TcpExt", "TCPSynRetrans") >= times

    def run() -> Iterator[tuple[int, int]]:
        for number in range(1, 1 + RUNS):
            before = flow.look.counters.synack_retransmits
            # the server takes a client that says nothing for one that did not hear
            with flow.network.connect(flow.port):
                wait_for(partial(has_been, number))
                yield flow.look.counters.synack_retransmits - before, 1

    assert some_run_is_exact(run())
    assert flow.look.counters.retransmits == 0


def test_loss_probes_are_apart_from_timeouts(flow: Flow) -> None:
    def counted(name: str) -> int:
        return flow.network.counted("netstat", "TcpExt", name)

    def run() -> Iterator[tuple[int, int]]:
        for number in range(1, 1 + RUNS):
            before, timeouts, probes = flow.look.counters, counted("TCPTimeouts"), probes_now()
            sent_again = flow.network.retransmitted()
            with flow.network.connect(flow.port) as client:
                client.write(post(SCRIPT))
                client.read(len(BEGUN))
                go_deaf(client)
                wait_for(partial(has_more_timeouts_than, timeouts))
                hear_again(client)
                client.read(len(sent_by(SCRIPT)) - len(BEGUN))
                flow.look.ends(number)
            ours = flow.look.counters.since(before)
            probes, sent_again = probes_now() - probes, flow.network.retransmitted() - sent_again
            assert 1 <= probes < sent_again
            assert ours.loss_probes <= probes
            yield ours.loss_probes + ours.retransmits, probes + sent_again

    def probes_now() -> int:
        return counted("TCPLossProbes")

    def has_more_timeouts_than(before: int) -> bool:
        return counted("TCPTimeouts") > before

    assert some_run_is_exact(run())
