"""The inference calls of the servers we know, so that a span's name is one of few."""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Route:
    """A call: its path with placeholders, and OpenTelemetry's word for what it does, if it has one.

    The words are those of `gen_ai.operation.name`.
    """

    path: str
    operation: str | None = None


_ROUTES: Final = {
    route.path: route
    for route in (
        # OpenAI's, as vLLM, SGLang and most others serve them
        Route("/v1/chat/completions", "chat"),
        Route("/v1/completions", "text_completion"),
        Route("/v1/embeddings", "embeddings"),
        Route("/v1/responses", "chat"),
        Route("/v1/messages", "chat"),
        Route("/v1/rerank"),
        Route("/v1/score"),
        Route("/v1/models"),
        # SGLang's and TGI's own
        Route("/generate", "text_completion"),
        Route("/generate_stream", "text_completion"),
        Route("/tokenize"),
        Route("/detokenize"),
    )
}
_TRITON: Final = re.compile(
    r"/v2/models/[^/]+(?P<version>/versions/[^/]+)?/(?P<call>infer|generate|generate_stream)"
)


def route_of(path: str) -> Route | None:
    """The call that a path without its query is; None for one we don't know."""
    if (known := _ROUTES.get(path)) is not None:
        return known
    match = _TRITON.fullmatch(path)
    if match is None:
        return None
    version = "/versions/{version}" if match["version"] else ""
    operation = None if match["call"] == "infer" else "text_completion"
    return Route(f"/v2/models/{{model}}{version}/{match['call']}", operation)
