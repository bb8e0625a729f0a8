import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.engines.client import EngineClient, EngineError, Response, call
from controller.engines.contract import CALLS, ERRORS, KNOBS, MAX_LINE_BYTES, encode, parse_hello
from controller.engines.page import PageReader
from controller.reference.server import main
from tests.engines.reference_process import COMMAND, Client, Running, reference_engine

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DOCUMENT = Path(__file__).parents[2] / "docs" / "engine-protocol.md"
PATIENCE_S = 20

TCP_INFO_DATA_SEGS_IN = 152
"""Offset of tcpi_data_segs_in in struct tcp_info (linux/tcp.h)."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with reference_engine() as running:
        yield running


@pytest.fixture
def client(engine: Running) -> Iterator[Client]:
    with Client(engine) as made:
        yield made


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory other users can look into; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def streamed(tokens: int, **fields: Any) -> dict[str, Any]:
    base = {"prompt": "hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    return {**base, **fields}


def until(true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends, f"{what} did not happen"
        time.sleep(0.005)


def ask(engine: Running, name: str, **fields: Any) -> Any:
    return call(engine.admin, name, PATIENCE_S, **fields)


def stats(engine: Running) -> Any:
    return ask(engine, "stats")["now"]


def next_epoch(engine: Running) -> int:
    epoch: int = ask(engine, "get")["epoch"]
    return epoch + 1


def hold(engine: Running, owner: str, lease_ms: int = 5000, **values: int) -> Any:
    return ask(
        engine, "set", owner=owner, epoch=next_epoch(engine), lease_ms=lease_ms, values=values
    )


def spare_line(engine: Running) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(engine.admin))
    return sock


def read_message(sock: socket.socket) -> Any:
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        assert byte, "the engine closed the connection"
        line += byte
    return json.loads(line)


def test_a_completion_streams_one_event_a_token(client: Client) -> None:
    answer = client.ask(COMPLETIONS, streamed(12))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.events()
    assert len(events) == 12
    choices = [event["choices"][0] for event in events]
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]
    assert all(isinstance(choice["text"], str) for choice in choices)
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"text_completion"}


def test_a_chat_streams_its_role_first_and_usage_last(client: Client) -> None:
    fields = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    role, *tokens, usage = client.ask(CHAT, fields).events()
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 5
    assert all("role" not in event["choices"][0]["delta"] for event in tokens)
    assert all(event["usage"] is None for event in (role, *tokens))
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5


def test_each_write_is_a_segment_of_its_own_on_the_wire(engine: Running) -> None:
    # The kernel may join two writes of a busy sender; a server that joined or split them itself
    # would never be seen with the right number.
    expected = 1 + 10 + 1 + 1
    seen: list[int] = []
    for _ in range(20):
        with Client(engine) as client:
            assert len(client.ask(COMPLETIONS, streamed(10)).events()) == 10
            info = client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            seen.append(*struct.unpack_from("I", info, TCP_INFO_DATA_SEGS_IN))
        if seen[-1] == expected:
            break
    assert seen[-1] == expected, seen


def test_an_answer_in_one_piece_is_the_stream_s_text(client: Client) -> None:
    events = client.ask(COMPLETIONS, streamed(10, temperature=0)).events()
    whole = client.ask(COMPLETIONS, streamed(10, temperature=0, stream=False)).json()
    text = "".join(event["choices"][0]["text"] for event in events)
    assert whole["choices"][0]["text"] == text
    assert whole["usage"] == {"prompt_tokens": 6, "completion_tokens": 10, "total_tokens": 16}


def test_a_batch_does_not_change_what_a_greedy_request_gets(engine: Running) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(engine)) for _ in range(6)]
        fields = [streamed(10, temperature=0, prompt=f"number {n} " * 30 * n) for n in range(1, 7)]
        alone = [clients[0].ask(COMPLETIONS, asked).events() for asked in fields]
        for client, asked in zip(clients, fields, strict=True):
            client.send(COMPLETIONS, asked)
        together = [client.read().events() for client in clients]
    texts = [
        ["".join(event["choices"][0]["text"] for event in events) for events in answers]
        for answers in (alone, together)
    ]
    assert texts[0] == texts[1]


def test_a_connection_carries_one_request_after_another(client: Client) -> None:
    for _ in range(3):
        assert len(client.ask(COMPLETIONS, streamed(2)).events()) == 2
    assert client.ask("/v1/models").json()["data"][0]["id"] == "sits-reference"
    client.send(COMPLETIONS, streamed(3))
    client.send(COMPLETIONS, streamed(4))
    assert [len(client.read().events()) for _ in range(2)] == [3, 4]


def test_close_is_honoured(engine: Running) -> None:
    with Client(engine) as client:
        client.sock.sendall(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert client.read().headers["connection"] == "close"
        assert client.sock.recv(1) == b""


def test_a_bad_request_names_its_field_and_keeps_the_connection(client: Client) -> None:
    answer = client.ask(COMPLETIONS, {"prompt": "a", "max_tokens": -1})
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "max_tokens"
    assert client.ask(COMPLETIONS, raw=b"{").json()["error"]["type"] == "invalid_request_error"
    assert client.ask("/nowhere").status == 404
    assert client.ask(COMPLETIONS).status == 405
    assert client.ask(COMPLETIONS, {"prompt": "a", "model": "m"}).status == 404
    assert client.ask("/health").status == 200


def test_what_is_no_http_gets_a_400_and_the_end(engine: Running) -> None:
    with Client(engine) as client:
        client.sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert client.read().status == 400
        assert client.sock.recv(1) == b""


def test_metrics_count_requests_and_tokens(engine: Running, client: Client) -> None:
    def value(name: str) -> float:
        text = client.ask("/metrics").body.decode()
        found = re.search(rf"^sits_reference_{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    tokens = value("generation_tokens_total")
    firsts = value("time_to_first_token_seconds_count")
    gaps = value("inter_token_latency_seconds_count")
    client.ask(COMPLETIONS, streamed(7))
    assert value("generation_tokens_total") == tokens + 7
    assert value("time_to_first_token_seconds_count") == firsts + 1
    assert value("inter_token_latency_seconds_count") == gaps + 6
    assert value("num_requests_running") == 0
    assert value("kv_cache_usage_ratio") == 0


def test_a_client_that_leaves_frees_its_slot(engine: Running) -> None:
    finished = stats(engine)["finished_total"]
    with Client(engine) as client:
        client.send(COMPLETIONS, streamed(4000))
        client.read_head()
        client.read_chunk()
        assert stats(engine)["running"] == 1
    until(lambda: stats(engine)["running"] == 0, "freeing the slot")
    now = stats(engine)
    assert (now["kv_used"], now["waiting_tokens"]) == (0, 0)
    assert now["finished_total"] == finished


def test_a_full_queue_refuses_with_503_and_when_to_come_back(engine: Running) -> None:
    hold(engine, "narrow", max_running=1, max_queued=2)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(engine)) for _ in range(4)]
        clients[0].send(COMPLETIONS, streamed(4000))
        until(lambda: stats(engine)["running"] == 1, "running")
        for client in clients[1:3]:
            client.send(COMPLETIONS, streamed(4000))
        until(lambda: stats(engine)["waiting"] == 2, "queueing")
        answer = clients[3].ask(COMPLETIONS, streamed(1))
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "server_error"
    until(lambda: stats(engine)["running"] + stats(engine)["waiting"] == 0, "the end")
    ask(engine, "release", owner="narrow")


def test_a_knob_set_under_load_is_applied_and_drains(engine: Running) -> None:
    page = PageReader(engine.page)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(engine)) for _ in range(6)]
        for index, client in enumerate(clients):
            client.send(COMPLETIONS, streamed(40 + 30 * index))
        until(lambda: stats(engine)["running"] == 6, "running six")
        answer = hold(engine, "tuner", max_running=2, max_batched_tokens=16)
        assert answer["state"] in {"pending", "applied"}
        epoch = answer["epoch"]

        def applied() -> bool:
            read = page.read()
            return read is not None and read[0].epoch == epoch and read[0].max_running == 2

        until(applied, "the change on the page")
        events = [client.read().events() for client in clients]
        assert [len(each) for each in events] == [40, 70, 100, 130, 160, 190]
        read = page.read()
        assert read is not None
        assert max(step.prefill_tokens + step.decode_seqs for step in read[1]) <= 16
    page.close()
    ask(engine, "release", owner="tuner")


def test_the_page_shows_the_steps_of_a_request(engine: Running, client: Client) -> None:
    page = PageReader(engine.page)
    before = page.read()
    assert before is not None
    client.ask(COMPLETIONS, streamed(5, prompt=[65] * 3000))
    after = page.read(after_step=before[0].steps)
    assert after is not None
    now, steps = after
    assert [step.prefill_tokens for step in steps] == [2048, 952, 0, 0, 0, 0]
    assert [step.decode_seqs for step in steps] == [0, 0, 1, 1, 1, 1]
    assert [step.kv_tokens for step in steps] == [2048, 3000, 3001, 3002, 3003, 3004]
    assert all(step.step_ns > 0 for step in steps)
    assert all(later.end_ns - later.step_ns >= earlier.end_ns for earlier, later in pairwise(steps))
    assert now.generated_tokens_total == before[0].generated_tokens_total + 5
    assert now.prompt_tokens_total == before[0].prompt_tokens_total + 3000
    page.close()


def test_a_lease_reverts_on_an_idle_engine_when_its_owner_is_killed(engine: Running) -> None:
    page = PageReader(engine.page)
    script = (
        "import sys, time; from pathlib import Path; from controller.engines.client import call\n"
        "call(Path(sys.argv[1]), 'set', 5, owner='mortal', epoch=int(sys.argv[2]),"
        " lease_ms=400, values={'max_running': 3}); print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(engine.admin), str(next_epoch(engine))]
    expiries = stats(engine)["lease_expiries_total"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        owner.kill()

    def reverted() -> bool:
        read = page.read()
        return read is not None and (read[0].max_running, read[0].epoch) == (64, 0)

    # Only the page is looked at: nothing that asks the engine could be what made it look.
    until(reverted, "the revert on the page")
    read = page.read()
    assert read is not None
    assert read[0].lease_expiries_total == expiries + 1
    assert ask(engine, "get")["owner"] is None
    page.close()


def test_a_second_owner_is_refused_while_the_lease_lasts(engine: Running) -> None:
    hold(engine, "first", max_running=9)
    with pytest.raises(EngineError, match="held by 'first'") as caught:
        hold(engine, "second", max_running=5)
    assert caught.value.code == "held"
    with pytest.raises(EngineError, match="held by 'first'"):
        ask(engine, "release", owner="second")
    assert ask(engine, "get")["values"]["max_running"] == 9
    ask(engine, "release", owner="first")
    assert hold(engine, "second", max_running=5)["owner"] == "second"
    ask(engine, "release", owner="second")


def test_clients_that_misbehave_harm_no_one_else(engine: Running) -> None:
    with ExitStack() as stack:
        silent, half, mute, wrong = (stack.enter_context(spare_line(engine)) for _ in range(4))
        half.sendall(b'{"call":')
        mute.sendall(encode({"call": "watch", "period_ms": 5}) * 50)
        wrong.sendall(b"GET / HTTP/1.1\r\n\r\n[]\n{}\n" + b"\xff" * 100 + b"\n")
        error = read_message(wrong)["error"]
        assert error["code"] == "bad_json"
        long = stack.enter_context(spare_line(engine))
        long.sendall(b"x" * MAX_LINE_BYTES)
        answers = b"".join(iter(lambda: long.recv(4096), b""))
        assert json.loads(answers)["error"]["code"] == "bad_json"
        flood = stack.enter_context(spare_line(engine))
        flood.setblocking(False)
        with pytest.raises((BlockingIOError, BrokenPipeError, ConnectionResetError)):
            flood_with(flood)
        for _ in range(50):
            assert ask(engine, "get")["values"]["max_running"] == 64
        half.sendall(b'"get","id":5}\n')
        assert read_message(half)["id"] == 5
        silent.sendall(encode({"call": "get"}))
        assert read_message(silent)["ok"] is True


def flood_with(sock: socket.socket) -> None:
    while True:
        sock.sendall(encode({"call": "get"}) * 1000)


def test_a_client_that_leaves_its_answers_unread_is_closed(engine: Running) -> None:
    with spare_line(engine) as sock:
        sock.sendall(encode({"call": "hello"}) * 3000)
        hung_up = select.poll()
        hung_up.register(sock, 0)
        assert hung_up.poll(PATIENCE_S * 1000)
        assert ask(engine, "get")["ok"] is True


def test_more_clients_than_fit_push_out_the_quietest(engine: Running) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(spare_line(engine)) for _ in range(70)]
        assert ask(engine, "get")["ok"] is True
        assert crowd[0].recv(1) == b""
        crowd[-1].sendall(encode({"call": "get"}))
        assert read_message(crowd[-1])["ok"] is True


def test_a_watcher_sees_every_change_and_the_end_of_the_lease(engine: Running) -> None:
    with spare_line(engine) as sock, sock.makefile("rb") as lines:
        sock.sendall(encode({"id": "w", "call": "watch"}))
        assert json.loads(lines.readline())["period_ms"] is None
        hold(engine, "seen", lease_ms=100, max_running=7)
        running: list[int] = []
        while not running or running[-1] != 64:
            event = json.loads(lines.readline())
            assert (event["event"], event["id"]) == ("knobs", "w")
            running.append(event["values"]["max_running"])
        assert 7 in running


def test_a_watcher_gets_figures_every_period(engine: Running) -> None:
    with spare_line(engine) as sock, sock.makefile("rb") as lines:
        sock.sendall(encode({"id": 1, "call": "watch", "period_ms": 20}))
        lines.readline()
        times = [json.loads(lines.readline())["now"]["updated_ns"] for _ in range(5)]
        assert times == sorted(times)
        assert times[-1] - times[0] >= 3 * 20_000_000


def test_every_code_of_a_wrong_request(engine: Running) -> None:
    epoch = next_epoch(engine)
    good = {"owner": "o", "epoch": epoch, "lease_ms": 100, "values": {}}
    for name, change, code in (
        ("dance", {}, "unknown_call"),
        ("hello", {"protocol": [9]}, "bad_request"),
        ("set", {"owner": ""}, "bad_request"),
        ("set", {"owner": 5}, "bad_request"),
        ("set", {"epoch": "1"}, "bad_request"),
        ("set", {"epoch": epoch - 1}, "stale_epoch"),
        ("set", {"lease_ms": 0}, "out_of_range"),
        ("set", {"lease_ms": None}, "bad_request"),
        ("set", {"values": [1]}, "bad_request"),
        ("set", {"values": {"concurrency": 1}}, "unknown_knob"),
        ("set", {"values": {"max_running": 65}}, "out_of_range"),
        ("set", {"values": {"max_running": "8"}}, "bad_request"),
        ("prepare", {}, "bad_request"),
        ("prepare", {"term_ms": 10**6}, "out_of_range"),
        ("commit", {}, "not_prepared"),
        ("watch", {"period_ms": 1}, "out_of_range"),
    ):
        with pytest.raises(EngineError) as caught:
            ask(engine, name, **{**good, **change})
        assert caught.value.code == code, (name, change)
    assert ask(engine, "get")["epoch"] == epoch - 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_only_root_and_the_admin_group_are_admitted(open_path: Path) -> None:
    script = (
        "import os, socket, sys\n"
        "os.setgroups([int(group) for group in sys.argv[2:]]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        'if len(sys.argv) > 2: s.sendall(b\'{"call":"get"}\\n\')\n'
        "print(s.makefile().readline())"
    )

    def as_nobody(*groups: str) -> Any:
        command = [sys.executable, "-I", "-S", "-c", script, str(admin), *groups]
        done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
        return json.loads(done.stdout)

    admin = open_path / "admin.sock"
    with reference_engine("--admin-group", "12345", admin=admin):
        assert admin.stat().st_gid == 12345
        assert admin.stat().st_mode & 0o777 == 0o660
        assert as_nobody("12345")["ok"] is True
        # The file's mode already keeps others out; with it opened, the engine itself must.
        admin.chmod(0o666)
        # The refusal comes unasked: a request could already find the connection closed.
        assert as_nobody()["error"]["code"] == "denied"


def test_a_restart_changes_the_instance_and_a_stop_leaves_nothing(tmp_path: Path) -> None:
    admin = tmp_path / "admin.sock"
    instances = set()
    for number in (signal.SIGTERM, signal.SIGINT):
        with reference_engine(admin=admin) as running:
            hello = parse_hello(ask(running, "hello"))
            assert hello.pid == running.process.pid
            assert hello.page == str(running.page)
            instances.add(hello.instance)
            with Client(running) as client:
                client.send(COMPLETIONS, streamed(4000))
                client.read_head()
                running.process.send_signal(number)
                assert running.process.wait(PATIENCE_S) == 0
            assert not admin.exists()
            assert not running.page.exists()
    assert len(instances) == 2


def test_a_killed_engine_s_socket_and_page_are_taken_over(tmp_path: Path) -> None:
    admin = tmp_path / "admin.sock"
    with reference_engine(admin=admin) as running:
        running.process.kill()
        running.process.wait()
        assert admin.exists()
    with reference_engine(admin=admin) as running:
        assert ask(running, "get")["ok"] is True
        second = subprocess.run(
            [*COMMAND, "--port", "0", "--admin-socket", str(admin)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert "another process listens there" in second.stderr
        assert ask(running, "get")["ok"] is True


def test_a_client_s_loop_holds_a_lease_by_renewing(engine: Running) -> None:
    with EngineClient(engine.admin) as client:
        client.connect()
        epoch = next_epoch(engine)
        values: dict[str, int] = {"max_running": 11}
        ends = time.monotonic() + 0.6
        while time.monotonic() < ends:
            client.request(
                "set",
                time.monotonic_ns(),
                owner="loop",
                epoch=epoch,
                lease_ms=300,
                values=values,
            )
            epoch, values = epoch + 1, {}
            time.sleep(0.02)
            for message in client.on_readable():
                assert isinstance(message, Response)
                assert message.refusal is None
                assert message.fields["owner"] == "loop"
        assert ask(engine, "get")["values"]["max_running"] == 11
    ask(engine, "release", owner="loop")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--port", "70000"), "'--port': 70000 is not in the range"),
        (("--max-running", "0"), "'--max-running': 0 is not in the range"),
        (("--kv-tokens", "100"), "--max-context: must be at most --kv-tokens (100)"),
        (("--width", "33"), "--width: must be even"),
        (("--admin-group", "no-such-group"), "there is no group 'no-such-group'"),
        (("--admin-socket", "/nowhere/a.sock", "--port", "0"), "admin socket '/nowhere/a.sock'"),
        (("--admin-socket", "/etc/hostname", "--port", "0"), "a file that is no socket is there"),
        (("--page", "/etc/hostname", "--port", "0"), "another file is there"),
    ],
)
def test_a_bad_option_is_named(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named_and_nothing_is_left(engine: Running, tmp_path: Path) -> None:
    options = ("--port", str(engine.port), "--admin-socket", str(tmp_path / "a.sock"))
    done = subprocess.run(
        [*COMMAND, *options, "--page", str(tmp_path / "page")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert f"could not listen at 127.0.0.1:{engine.port}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert main.params
    for option in main.params:
        assert re.search(rf"{option.opts[0]} .*\S", done.stdout), option.name


VOLATILE = {"instance", "pid", "page", "lease_ms_left", "updated_ns"}


def steady(message: Any) -> Any:
    """What a session's message must be: without what differs from run to run."""
    if not isinstance(message, dict):
        return message
    kept = {name: steady(value) for name, value in message.items() if name not in VOLATILE}
    if kept.get("code") == "bad_json":
        del kept["message"]
    return kept


def session_steps() -> list[tuple[str, str, str]]:
    """(who, `>` or `<` or `wait`, text) for each entry of the document's sessions."""
    blocks = re.findall(r"```session\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert blocks
    steps: list[tuple[str, str, str]] = []
    for line in "".join(blocks).splitlines():
        if wait := re.fullmatch(r"\((\d+) ms pass\)", line):
            steps.append(("", "wait", wait[1]))
        elif entry := re.match(r"(\w+)([<>]) (.*)", line):
            steps.append((entry[1], entry[2], entry[3]))
        elif line.strip():
            who, direction, text = steps[-1]
            steps[-1] = (who, direction, text + line.strip())
    return steps


def test_the_document_s_session_is_what_the_engine_says() -> None:
    with reference_engine() as running, ExitStack() as stack:
        socks = {name: stack.enter_context(spare_line(running)) for name in ("agent", "other")}
        files = {name: stack.enter_context(sock.makefile("rb")) for name, sock in socks.items()}
        compared = 0
        for who, direction, text in session_steps():
            if direction == "wait":
                time.sleep(int(text) / 1000)
            elif direction == ">":
                socks[who].sendall(text.encode() + b"\n")
            else:
                expected, answered = json.loads(text), json.loads(files[who].readline())
                assert steady(answered) == steady(expected)
                assert answered.keys() == expected.keys()
                compared += 1
        assert compared >= 10


def test_the_document_names_every_call_knob_and_error() -> None:
    text = DOCUMENT.read_text()
    for name in (*CALLS, *KNOBS, *ERRORS):
        assert f"| `{name}` |" in text, name
