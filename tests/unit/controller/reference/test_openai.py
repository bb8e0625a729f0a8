import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reference.model import BOS, EOS
from controller.reference.openai import Answer, ApiError, Generation, parse

CONTEXT = 100


def parsed(*, chat: bool = False, **fields: Any) -> Generation:
    body = json.dumps(fields).encode()
    return parse(body, chat=chat, model_name="m", max_context=CONTEXT)


def answer(*, chat: bool, include_usage: bool = False) -> Answer:
    generation = Generation(
        chat=chat,
        prompt=(1, 2),
        max_tokens=5,
        temperature=0,
        ignore_eos=True,
        stream=True,
        include_usage=include_usage,
    )
    return Answer("k", 7, "m", generation)


def read(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


def test_a_string_is_its_bytes_after_the_begin_token() -> None:
    assert parsed(prompt="aé").prompt == (BOS, 97, 0xC3, 0xA9)


def test_token_ids_are_taken_as_they_are() -> None:
    assert parsed(prompt=[5, EOS, 0]).prompt == (5, EOS, 0)


def test_defaults_are_openai_s() -> None:
    generation = parsed(prompt="a", max_tokens=None)
    assert generation == Generation(
        chat=False,
        prompt=(BOS, 97),
        max_tokens=16,
        temperature=1.0,
        ignore_eos=False,
        stream=False,
        include_usage=False,
    )


def test_a_chat_fills_the_context_unless_told_otherwise() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    generation = parsed(chat=True, messages=messages)
    assert bytes(generation.prompt[1:]) == b"user: hi\nassistant: "
    assert generation.max_tokens == CONTEXT - len(generation.prompt)
    assert parsed(chat=True, messages=messages, max_completion_tokens=3).max_tokens == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1] * CONTEXT}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": CONTEXT}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "stream": 1}, "stream"),
        ({"prompt": "a", "stream_options": []}, "stream_options"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"prompt": "a", "ignore_eos": "yes"}, "ignore_eos"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "stop": ["x"]}, "stop"),
        ({"prompt": "a", "model": "other"}, "model"),
    ],
)
def test_a_bad_request_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert caught.value.param == param
    error = json.loads(caught.value.body())["error"]
    assert error["param"] == param
    assert param.rpartition(".")[2] in error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
        ([{"role": "user", "content": "x" * CONTEXT}], "messages"),
    ],
)
def test_a_bad_message_is_named(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(chat=True, messages=messages)
    assert caught.value.param == param


@settings(deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_no_bytes_do_worse_than_an_api_error(body: bytes, chat: bool) -> None:
    with pytest.raises(ApiError):
        parse(body, chat=chat, model_name="m", max_context=CONTEXT)


def test_the_first_event_of_a_chat_has_only_the_role() -> None:
    event = read(answer(chat=True).role_event())
    assert event["object"] == "chat.completion.chunk"
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_a_token_event_has_its_text_and_how_it_ended() -> None:
    event = read(answer(chat=False).token_event(65, "length"))
    assert event["id"] == "cmpl-k"
    assert event["object"] == "text_completion"
    assert event["choices"][0]["text"] == "A"
    assert event["choices"][0]["finish_reason"] == "length"
    assert "usage" not in event


def test_the_end_of_text_has_no_text() -> None:
    event = read(answer(chat=True).token_event(EOS, "stop"))
    assert event["choices"][0]["delta"] == {"content": ""}


def test_usage_comes_last_and_is_null_before() -> None:
    made = answer(chat=True, include_usage=True)
    assert read(made.token_event(65, None))["usage"] is None
    last = read(made.usage_event(5))
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}


def test_a_whole_chat_is_one_message() -> None:
    body = json.loads(answer(chat=True).whole([72, 105, EOS], "stop"))
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hi"}
    assert body["usage"]["completion_tokens"] == 3
