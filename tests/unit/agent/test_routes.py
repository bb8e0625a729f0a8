import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.routes import Route, route_of


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/completions", Route("/v1/completions", "text_completion")),
        ("/v1/chat/completions", Route("/v1/chat/completions", "chat")),
        ("/v1/embeddings", Route("/v1/embeddings", "embeddings")),
        ("/tokenize", Route("/tokenize")),
        ("/v2/models/a/infer", Route("/v2/models/{model}/infer")),
        (
            "/v2/models/a-b.c/versions/3/generate_stream",
            Route("/v2/models/{model}/versions/{version}/generate_stream", "text_completion"),
        ),
        ("/v2/models/a/b/infer", None),
        ("/v1/completions/", None),
        ("/V1/completions", None),
        ("", None),
    ],
)
def test_known_calls_have_a_route_and_other_paths_none(path: str, route: Route | None) -> None:
    assert route_of(path) == route


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_what_a_caller_writes_into_a_path_is_never_in_the_route(model: str, version: str) -> None:
    routes = {
        route.path
        for call in ("infer", "generate")
        for path in (f"/v2/models/{model}/{call}", f"/v2/models/{model}/versions/{version}/{call}")
        if (route := route_of(path)) is not None
    }
    assert routes <= {
        f"/v2/models/{{model}}{middle}/{call}"
        for call in ("infer", "generate")
        for middle in ("", "/versions/{version}")
    }
