"""The first token: what comes before it in a chat, and the deadline for it."""

import json

import pytest

from bpf.layout import Event
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.streams import follow
from tests.kernel.bpf.watched import Look
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    DONE,
    LAST,
    Client,
    chunk,
    chunked,
    pause,
    post,
    send,
)

pytestmark = pytest.mark.kernel

SPACED, DENSE = (", ", ": "), (",", ":")
PAUSE_NS = 20_000_000


def frame(*deltas: dict[str, object], separators: tuple[str, str] = DENSE, **more: object) -> bytes:
    """A frame of a chat with one choice for each delta, as OpenAI's and its followers' are."""
    choices = [
        {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        for index, delta in enumerate(deltas)
    ]
    whole = {
        "id": "chatcmpl-0a1b",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "llama",
        **more,
        "choices": choices,
    }
    return b"data: " + json.dumps(whole, separators=separators).encode() + b"\n\n"


ROLE_ONLY: list[dict[str, object]] = [
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "assistant"},
    {"content": "", "role": "assistant"},
    {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None},
    {"role": "assistant", "content": "", "reasoning_content": ""},
    {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []},
    {"role": "assistant", "content": None, "function_call": None, "refusal": None},
]
TOKENS: list[dict[str, object]] = [
    {"content": "Hello"},
    {"content": " "},
    {"content": '"'},
    {"content": "\n"},
    {"content": "role"},
    {"content": ""},
    {"role": "assistant", "content": "Hello"},
    {"content": "Hello", "role": "assistant"},
    {"role": "assistant", "content": "", "reasoning_content": "Hm"},
    {"role": "assistant", "content": None, "reasoning": "Hm"},
    {"reasoning_content": "Hm"},
    {"role": "assistant", "content": None, "tool_calls": [{"index": 0, "id": "a"}]},
    {"role": "assistant", "content": None, "function_call": {"name": "f"}},
    {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    {},
]
TOKEN = frame({"content": "Hello"})
ROLE = frame(ROLE_ONLY[0])


def figures(end: Event) -> tuple[int, int, int]:
    return end.stream.role_frames, end.stream.chunks, end.stream.events


@pytest.mark.parametrize("separators", [SPACED, DENSE])
@pytest.mark.parametrize("delta", ROLE_ONLY, ids=json.dumps)
def test_a_frame_that_only_names_a_role_is_no_token(
    engine: Engine, delta: dict[str, object], separators: tuple[str, str]
) -> None:
    look = engine.look()
    first = frame(delta, separators=separators)
    end = follow(engine, send(chunked([first, TOKEN, TOKEN, DONE])))
    assert figures(end) == (1, 2, 2)
    assert (look.counters.role_frames, look.counters.chunks) == (1, 2)


@pytest.mark.parametrize("separators", [SPACED, DENSE])
@pytest.mark.parametrize("delta", TOKENS, ids=json.dumps)
def test_a_frame_with_anything_for_the_user_is_a_token(
    engine: Engine, delta: dict[str, object], separators: tuple[str, str]
) -> None:
    first = frame(delta, separators=separators)
    assert figures(follow(engine, send(chunked([first, TOKEN, DONE])))) == (0, 2, 2)
    assert figures(follow(engine, send(chunked([ROLE, first, DONE])))) == (1, 1, 1)


def test_ttft_is_to_the_first_token_and_not_to_the_role(engine: Engine) -> None:
    look = engine.look()
    end = follow(
        engine, send(CHUNKED_HEAD + chunk(ROLE)), pause(PAUSE_NS / 1e9), send(chunk(TOKEN) + LAST)
    )
    assert end.stream.first_ns - end.stream.head_ns >= PAUSE_NS // 2
    assert (look.counters.first_chunks, look.counters.gaps) == (1, 0)


def test_roles_of_several_choices_come_before_the_first_token(engine: Engine) -> None:
    roles = [ROLE, ROLE, ROLE]
    assert figures(follow(engine, send(chunked([*roles, TOKEN, TOKEN])))) == (3, 2, 2)
    merged = b"".join(roles)
    assert figures(follow(engine, send(chunked([merged, TOKEN, TOKEN])))) == (3, 2, 2)
    assert figures(follow(engine, send(chunked([frame(*ROLE_ONLY), TOKEN])))) == (1, 1, 1)


def test_a_role_that_shares_its_chunk_with_a_token_is_in_the_first_chunk(engine: Engine) -> None:
    assert figures(follow(engine, send(chunked([ROLE + TOKEN, TOKEN])))) == (0, 2, 3)
    assert figures(follow(engine, send(chunked([ROLE, ROLE + TOKEN])))) == (1, 1, 2)


def test_an_event_that_names_no_role_is_a_token_beside_one_that_does(engine: Engine) -> None:
    other = b'event: delta\nid: 7\ndata: {"a":\ndata: 1}\n\n'
    assert figures(follow(engine, send(chunked([ROLE + other, TOKEN])))) == (0, 2, 3)
    assert figures(follow(engine, send(chunked([other + ROLE, TOKEN])))) == (0, 2, 3)
    assert figures(follow(engine, send(chunked([ROLE, ROLE + other + ROLE])))) == (1, 1, 3)


def test_a_role_that_shares_its_chunk_with_the_mark_or_a_comment_is_no_token(
    engine: Engine,
) -> None:
    assert figures(follow(engine, send(chunked([ROLE + ROLE + DONE])))) == (2, 0, 0)
    assert figures(follow(engine, send(chunked([b": ping\n\n" + ROLE, TOKEN])))) == (1, 1, 1)
    assert figures(follow(engine, send(chunked([ROLE + b": ping\n\n", TOKEN])))) == (1, 1, 1)


def test_a_role_cut_at_every_byte_is_known(engine: Engine) -> None:
    whole = chunked([ROLE, TOKEN, DONE])
    assert figures(follow(engine, send(whole, range(1, len(whole))))) == (1, 1, 1)


def test_a_role_cut_into_chunks_after_its_name_is_known(engine: Engine) -> None:
    for at in range(ROLE.index(b'"role":') + 7, len(ROLE)):
        end = follow(engine, send(chunked([ROLE[:at], ROLE[at:], TOKEN])))
        assert figures(end) == (1, 1, 1), ROLE[:at]


def test_a_comment_before_the_role_changes_nothing(engine: Engine) -> None:
    assert figures(follow(engine, send(chunked([b": ping\n\n", ROLE, TOKEN])))) == (1, 1, 1)


def test_a_chat_that_only_names_its_role_has_no_first_token(engine: Engine) -> None:
    look = engine.look()
    end = follow(engine, send(chunked([ROLE, DONE])))
    assert figures(end) == (1, 0, 0)
    assert end.stream.ttft_ns is None
    assert look.counters.ends_unstarted == 1


def test_after_the_first_token_a_role_is_a_chunk_like_any(engine: Engine) -> None:
    assert figures(follow(engine, send(chunked([TOKEN, ROLE, TOKEN])))) == (0, 3, 3)


def test_roles_of_ollama_come_with_every_token(engine: Engine) -> None:
    frames = [frame({"role": "assistant", "content": text}) for text in ("Hel", "lo", "")]
    assert figures(follow(engine, send(chunked([*frames, DONE])))) == (0, 3, 3)


@pytest.mark.parametrize(
    "text", ["Hello", "", 'the "role": is', '{"role":"assistant","content":""}']
)
def test_a_completion_is_never_taken_for_a_role(engine: Engine, text: str) -> None:
    completion = {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": None}]}
    data = b"data: " + json.dumps(completion).encode() + b"\n\n"
    assert figures(follow(engine, send(chunked([data, data, DONE])))) == (0, 2, 2)


def test_each_stream_of_a_connection_has_its_own_first_token(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        for _ in range(3):
            client.run(send(chunked([ROLE, TOKEN, TOKEN, DONE])))
        ends = look.ends(3)
    assert [figures(end) for end in ends] == [(1, 2, 2)] * 3


def test_an_event_stream_until_close_begins_after_its_roles(engine: Engine) -> None:
    look = engine.look()
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    with Client.to(engine.port) as client:
        client.run(send(head + ROLE * 2), pause(PAUSE_NS / 1e9), send(TOKEN * 3 + DONE), CLOSE)
        client.read_to_end()
        end = look.end()
    assert figures(end) == (2, 3, 3)
    assert end.stream.first_ns - end.stream.head_ns >= PAUSE_NS // 2


# the deadline


DEADLINE_NS = 10_000_000
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
LATE = pause(3 * DEADLINE_NS / 1e9)


def with_deadline(engine: Engine, deadline_ns: int, *script: list[object]) -> Look:
    engine.watch(first_chunk_deadline_ns=deadline_ns)
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(*script)
        look.end()
    engine.watch()
    return look


def test_a_first_chunk_after_the_deadline_is_counted_once(engine: Engine) -> None:
    script = [send(CHUNKED_HEAD), LATE, send(chunk(TOKEN)), LATE, send(chunk(TOKEN) + LAST)]
    assert with_deadline(engine, DEADLINE_NS, *script).counters.deadlines_missed == 1


def test_a_first_chunk_in_time_is_not_counted(engine: Engine) -> None:
    script = [send(CHUNKED_HEAD + chunk(TOKEN)), pause(0.02), send(LAST)]
    assert with_deadline(engine, 10**12, *script).counters.deadlines_missed == 0


def test_without_a_deadline_none_is_missed(engine: Engine) -> None:
    assert with_deadline(engine, 0, LATE, send(chunked([TOKEN]))).counters.deadlines_missed == 0


def test_a_stream_that_never_has_a_first_chunk_missed_its_deadline(engine: Engine) -> None:
    script = [send(CHUNKED_HEAD + chunk(ROLE)), LATE, send(LAST)]
    counters = with_deadline(engine, DEADLINE_NS, *script).counters
    assert (counters.deadlines_missed, counters.ends_unstarted) == (1, 1)


def test_an_answer_that_is_no_stream_has_no_deadline(engine: Engine) -> None:
    script = [LATE, send(JSON_HEAD + b"{}")]
    counters = with_deadline(engine, DEADLINE_NS, *script).counters
    assert (counters.deadlines_missed, counters.ends_unstarted) == (0, 0)


def test_a_client_that_gives_up_before_any_answer_waited_in_vain(engine: Engine) -> None:
    engine.watch(first_chunk_deadline_ns=1)
    look = engine.look()
    with Client.to(engine.port) as client:
        client.write(post([pause(0.05)]))
        client.reset()
        look.end()
    engine.watch()
    assert (look.counters.deadlines_missed, look.counters.ends_unstarted) == (1, 1)
