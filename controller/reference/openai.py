"""The OpenAI-style API: request bodies in, response bodies and events out, without any IO."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from controller.reference.model import BOS, VOCABULARY

DEFAULT_MAX_TOKENS: Final = 16
"""What OpenAI's completions take when `max_tokens` is absent; chat takes what the context holds."""

_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "stop": ("", []),
    "suffix": ("",),
    "top_p": (1,),
    "tools": ([],),
}
"""Parameters that change the answer and are not offered, with the values that ask for nothing."""


class ApiError(Exception):
    """A request that can't be served; `param` is the field to blame."""

    def __init__(
        self, message: str, param: str | None = None, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status

    def body(self) -> bytes:
        """The error as OpenAI writes it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return dump(
            {
                "error": {
                    "message": str(self),
                    "type": kind,
                    "param": self.param,
                    "code": self.status.value,
                }
            }
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """What a client asked for. `chat` tells the two APIs apart; `prompt` is token ids."""

    chat: bool
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    ignore_eos: bool
    stream: bool
    include_usage: bool


def parse(body: bytes, *, chat: bool, model_name: str, max_context: int) -> Generation:
    """Read a request body; `ApiError` names the field that is wrong."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(f"the body must be an object, not {type(fields).__name__}")
    fields = {name: value for name, value in fields.items() if value is not None}
    _check_model(fields, model_name)
    for name, neutral in _NEUTRAL.items():
        if name in fields and fields[name] not in neutral:
            raise ApiError(f"{name} = {fields[name]!r:.40} is not offered here", name)
    prompt = _chat_prompt(fields) if chat else _prompt(fields)
    if len(prompt) >= max_context:
        raise ApiError(
            f"the prompt has {len(prompt)} tokens, the context holds {max_context}",
            "messages" if chat else "prompt",
        )
    name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    room = max_context - len(prompt)
    max_tokens = _whole(fields, name, room if chat else min(DEFAULT_MAX_TOKENS, room), 1, room)
    options = _typed(fields, "stream_options", dict, {})
    return Generation(
        chat=chat,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=_temperature(fields),
        ignore_eos=_typed(fields, "ignore_eos", bool, False),
        stream=_typed(fields, "stream", bool, False),
        include_usage=_typed(options, "include_usage", bool, False, "stream_options."),
    )


def text_of(token: int) -> str:
    """A token as text: the specials are empty, as is a byte that is no ASCII character."""
    return chr(token) if token < 128 else ""


class Answer:
    """Builds the bodies and events of one response."""

    def __init__(self, key: str, created: int, model_name: str, generation: Generation) -> None:
        self._generation = generation
        chat = generation.chat
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{key}"
        self._created = created
        self._model = model_name

    def role_event(self) -> bytes:
        """The first event of a chat: a delta with nothing but the role."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._event([choice])

    def token_event(self, token: int, finish: str | None) -> bytes:
        """The event of one token."""
        text = text_of(token)
        said: dict[str, Any] = (
            {"delta": {"content": text}} if self._generation.chat else {"text": text}
        )
        return self._event([{"index": 0, **said, "logprobs": None, "finish_reason": finish}])

    def usage_event(self, tokens: int) -> bytes:
        """The event after the last token when `stream_options.include_usage` is set."""
        return event(self._body("chunk", [], {"usage": self._usage(tokens)}))

    def whole(self, tokens: list[int], finish: str | None) -> bytes:
        """The body of an answer that is not streamed."""
        text = "".join(map(text_of, tokens))
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}}
            if self._generation.chat
            else {"text": text}
        )
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return dump(self._body("", [choice], {"usage": self._usage(len(tokens))}))

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        usage = {"usage": None} if self._generation.include_usage else {}
        return event(self._body("chunk", choices, usage))

    def _body(
        self, part: str, choices: list[dict[str, Any]], usage: dict[str, Any]
    ) -> dict[str, Any]:
        kind = "text_completion"
        if self._generation.chat:
            kind = "chat.completion.chunk" if part else "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            **usage,
        }

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = len(self._generation.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }


DONE: Final = b"data: [DONE]\n\n"
"""The event that ends a stream."""


def event(body: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % dump(body)


def dump(body: Mapping[str, Any]) -> bytes:
    """JSON without spaces."""
    return json.dumps(body, separators=(",", ":")).encode()


def _check_model(fields: Mapping[str, Any], model_name: str) -> None:
    asked = fields.get("model", model_name)
    if asked != model_name:
        raise ApiError(
            f"the model {asked!r:.60} does not exist; {model_name!r} is served here",
            "model",
            HTTPStatus.NOT_FOUND,
        )


def _prompt(fields: Mapping[str, Any]) -> tuple[int, ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return _tokens_of(prompt)
    if not isinstance(prompt, list):
        raise ApiError("prompt must be a string or a list of token ids", "prompt")
    if not prompt:
        raise ApiError("prompt must have at least one token", "prompt")
    for token in prompt:
        if type(token) is not int or not 0 <= token < VOCABULARY:
            raise ApiError(
                f"prompt: a token id is 0 to {VOCABULARY - 1}, not {token!r:.40}", "prompt"
            )
    return tuple(prompt)


def _chat_prompt(fields: Mapping[str, Any]) -> tuple[int, ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages must be a list with at least one message", "messages")
    lines = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ApiError(f"{where} must be an object", where)
        role = _typed(message, "role", str, None, f"{where}.")
        lines.append(f"{role}: {_content(message, where)}\n")
    return _tokens_of("".join(lines) + "assistant: ")


def _content(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        known = [text for text in texts if isinstance(text, str)]
        if len(known) == len(content):
            return "".join(known)
    raise ApiError(f"{where}.content must be a string or a list of text parts", f"{where}.content")


def _tokens_of(text: str) -> tuple[int, ...]:
    return (BOS, *text.encode(errors="replace"))


def _temperature(fields: Mapping[str, Any]) -> float:
    value = fields.get("temperature", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2:
        raise ApiError(f"temperature must be 0 to 2, not {value!r:.40}", "temperature")
    return float(value)


def _whole(fields: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise ApiError(f"{name} must be {low} to {high}, not {value!r:.40}", name)
    return value


def _typed(
    fields: Mapping[str, Any], name: str, kind: type, default: object, where: str = ""
) -> Any:
    value = fields.get(name, default)
    if not isinstance(value, kind):
        raise ApiError(
            f"{where}{name} must be {_KIND_NAMES[kind]}, not {value!r:.40}", f"{where}{name}"
        )
    return value


_KIND_NAMES: Final = {bool: "true or false", dict: "an object", str: "a string"}
