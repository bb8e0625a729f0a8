import json
import signal
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import pytest

from demo.client import Client, Lateness, Record, began_file, plan_lines, read_results
from demo.trace import Request
from tests.unit.demo.scripted import HEAD, Answer, ScriptedServer, chunk, stream

ROOT = Path(__file__).parents[3]


def plan(count: int, every_s: float = 0.0) -> list[Request]:
    return [Request(number * every_s, 20, 5) for number in range(count)]


def run(
    server: ScriptedServer,
    requests: list[Request],
    *,
    keep_alive: bool = False,
    give_up_s: float = 20,
) -> tuple[list[Record], Lateness]:
    client = Client(server.address, keep_alive=keep_alive, give_up_s=give_up_s)
    return client.run(requests, time.monotonic_ns())


def command(
    directory: Path, server: ScriptedServer, requests: list[Request]
) -> tuple[subprocess.Popen[bytes], Path]:
    """The client as a process of its own, and the file it will write."""
    requests_file, out = directory / "a.plan", directory / "a.jsonl"
    requests_file.write_text("".join(plan_lines(requests)))
    arguments = [f"--port={server.address[1]}", f"--plan={requests_file}", f"--out={out}"]
    return subprocess.Popen([sys.executable, "-m", "demo.client", *arguments], cwd=ROOT), out


def read_ns(record: Record) -> list[int]:
    """When each data chunk was read."""
    assert record.ttft_ms is not None
    times_ms = accumulate([record.ttft_ms, *record.gaps_ms])
    return [record.sent_ns + round(at * 1e6) for at in times_ms]


def test_every_data_chunk_is_counted_and_the_end_mark_is_none() -> None:
    with ScriptedServer(Answer(stream(7))) as server:
        (record,), _ = run(server, plan(1))
    assert (record.error, record.status, record.chunks) == ("", 200, 7)
    assert len(record.gaps_ms) == 6


def test_a_chunk_is_stamped_after_it_was_sent_and_before_the_next_one() -> None:
    with ScriptedServer(Answer(stream(5), pause_s=0.03)) as server:
        (record,), _ = run(server, plan(1))
    (exchange,) = server.exchanges
    assert record.sent_ns <= exchange.asked_ns
    tolerance_ns = 1_000  # stamps are kept in ms
    said_ns = exchange.said_ns[1:-1]
    read = read_ns(record)
    assert all(said <= at + tolerance_ns for said, at in zip(said_ns, read, strict=True))
    assert read[-1] <= record.ended_ns + tolerance_ns


def test_chunks_in_one_write_are_counted_apart() -> None:
    with ScriptedServer(Answer([b"".join(stream(4))])) as server:
        (record,), _ = run(server, plan(1))
    assert (record.chunks, record.gaps_ms) == (4, [0.0, 0.0, 0.0])


def test_a_chunk_cut_in_two_is_stamped_when_it_is_whole() -> None:
    first, second = chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n")
    writes = [HEAD, first, second[:6], second[6:], chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]
    with ScriptedServer(Answer(writes, pause_s=0.03)) as server:
        (record,), _ = run(server, plan(1))
    (exchange,) = server.exchanges
    assert record.chunks == 2
    assert read_ns(record)[1] + 1_000 >= exchange.said_ns[3]


def test_arrivals_do_not_wait_for_answers() -> None:
    requests = plan(5, every_s=0.02)
    with ScriptedServer(Answer(stream(2), pause_s=0.2)) as server:
        records, _ = run(server, requests)
    assert max(each.sent_ns for each in records) < min(each.ended_ns for each in records)
    assert all(each.sent_ns >= each.planned_ns for each in records)


def test_each_request_has_a_connection_of_its_own() -> None:
    with ScriptedServer(Answer(stream(2), close=False)) as server:
        records, _ = run(server, plan(3, every_s=0.1))
    assert {each.port for each in records} == {each.port for each in server.exchanges}
    assert len({each.port for each in records}) == 3


def test_a_kept_connection_is_used_again() -> None:
    with ScriptedServer(Answer(stream(2), close=False)) as server:
        records, _ = run(server, plan(3, every_s=0.2), keep_alive=True)
    assert [each.error for each in records] == ["", "", ""]
    assert len({each.port for each in records}) == 1


def test_a_request_asks_for_as_many_tokens_as_planned() -> None:
    with ScriptedServer(Answer(stream(1))) as server:
        run(server, [Request(0, 300, 17)])
    body = json.loads(server.exchanges[0].request.partition(b"\r\n\r\n")[2])
    assert (len(body["prompt"]) + 1, body["max_tokens"], body["stream"]) == (300, 17, True)


def test_a_request_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    with ScriptedServer(Answer(stream(1))) as server:
        (record,), _ = run(server, [Request(0, 8_000_000, 1)])
    assert record.error == ""
    assert len(server.exchanges[0].request) > 8_000_000


def test_a_refusal_is_a_failure_with_its_text() -> None:
    refusal = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull"
    with ScriptedServer(Answer([refusal])) as server:
        (record,), _ = run(server, plan(1))
    assert (record.status, record.error, record.ttft_ms) == (503, "HTTP 503: full", None)


def test_a_stream_cut_short_is_a_failure_with_the_chunks_that_came() -> None:
    with ScriptedServer(Answer(stream(3)[:-1])) as server:
        (record,), _ = run(server, plan(1))
    assert record.chunks == 3
    assert record.error.startswith("the server closed after")


def test_nonsense_is_a_failure_and_not_the_end_of_the_client() -> None:
    with ScriptedServer(Answer([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"])) as server:
        records, _ = run(server, plan(2))
    assert all("not a status line" in each.error for each in records)


def test_a_request_without_an_answer_is_given_up() -> None:
    with ScriptedServer(Answer([HEAD], hang=True)) as server:
        (record,), _ = run(server, plan(1), give_up_s=0.2)
    assert record.error == "not answered within 0.2 s"


def test_nobody_listening_is_a_failure_of_each_request() -> None:
    with ScriptedServer(Answer([])) as server:
        address = server.address
    records, _ = Client(address).run(plan(2), time.monotonic_ns())
    assert all(each.error == "could not connect: Connection refused" for each in records)


def test_the_client_knows_how_late_it_was() -> None:
    begun_late_ns = time.monotonic_ns() - 500_000_000
    with ScriptedServer(Answer(stream(3))) as server:
        _, late = Client(server.address).run(plan(2), begun_late_ns)
    assert late.arrival_ms.p50 is not None
    assert late.arrival_ms.p50 >= 500
    assert late.read_us.p50 is not None
    assert late.read_us.max is not None
    assert 0 <= late.read_us.p50 <= late.read_us.max


def test_a_client_that_was_stopped_says_so_and_blames_nobody_else(tmp_path: Path) -> None:
    with ScriptedServer(Answer([b"".join(stream(2))], pause_s=0.1)) as server:
        client, out = command(tmp_path, server, plan(1))
        while not server.exchanges:
            time.sleep(0.005)
        client.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        client.send_signal(signal.SIGCONT)
        assert client.wait(20) == 0
    (record,), late = read_results(out)
    assert late.read_us.max is not None
    assert late.read_us.max >= 200_000
    ((said_ns,),) = (exchange.said_ns for exchange in server.exchanges)
    assert read_ns(record)[0] - said_ns < late.read_us.max * 1e3 / 2


def test_the_command_writes_what_it_saw(tmp_path: Path) -> None:
    with ScriptedServer(Answer(stream(4))) as server:
        client, out = command(tmp_path, server, plan(3))
        assert client.wait(20) == 0
    records, late = read_results(out)
    assert [each.chunks for each in records] == [4, 4, 4]
    assert late.arrival_ms.max is not None
    assert all(each.planned_ns == int(began_file(out).read_text()) for each in records)


@pytest.mark.parametrize("option", ["--port=0", "--cpu=-1"])
def test_the_command_refuses_what_makes_no_sense(tmp_path: Path, option: str) -> None:
    (tmp_path / "a.plan").touch()
    plain = [sys.executable, "-m", "demo.client", "--port=1", f"--plan={tmp_path / 'a.plan'}"]
    done = subprocess.run(
        [*plain, f"--out={tmp_path / 'out'}", option], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 2
