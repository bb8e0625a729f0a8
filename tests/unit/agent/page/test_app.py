"""The page and its data, over HTTP."""

import hashlib
import http.client
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agent.agent_view import ApiError
from agent.http import HttpServer
from agent.page.answer import VERSION
from agent.page.app import document

from .shown import COLUMNS, HOSTILE, ShownView, columns_of, served


def get(server: HttpServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    assert server.port
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()


def data(server: HttpServer, query: str = "") -> Any:
    return json.loads(get(server, f"/page.json{query}")[2])


@pytest.fixture
def view() -> ShownView:
    return ShownView()


@pytest.fixture
def server(view: ShownView) -> Iterator[HttpServer]:
    with served(view, columns_of("chat")) as running:
        yield running


def test_the_page_is_one_document_that_asks_nobody_else(server: HttpServer) -> None:
    status, headers, content = get(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = content.decode()
    assert re.findall(r"(?:src|href)=\"(?!#|/|data:)[^\"]*\"|url\(|@import|https?://", text) == []
    assert "/*page" not in text


def test_its_policy_allows_just_its_own_style_and_script(server: HttpServer) -> None:
    _, headers, content = get(server, "/")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", content.decode(), re.DOTALL)
        digest = b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_the_script_never_makes_markup_of_text() -> None:
    text = document()[0].decode()
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text) == []
    )


@pytest.mark.parametrize("path", ["/", "/page.json"])
def test_it_is_only_read(server: HttpServer, path: str) -> None:
    assert get(server, path, "POST")[0] == 405
    assert get(server, path, "HEAD")[2] == b""


@pytest.mark.parametrize("path", ["/", "/page.json"])
def test_nobody_keeps_it_nor_guesses_its_type(server: HttpServer, path: str) -> None:
    headers = get(server, path)[1]
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_the_data_says_its_version_and_has_every_engines_columns(server: HttpServer) -> None:
    answer = data(server)
    assert answer["version"] == VERSION
    assert len(answer["columns"]["chat"]) == COLUMNS
    assert [engine["name"] for engine in answer["engines"]] == ["chat"]


def test_who_asks_again_gets_only_what_is_new(server: HttpServer) -> None:
    newest = data(server)["columns"]["chat"][-1]["number"]
    assert len(data(server, f"?after={newest - 2}")["columns"]["chat"]) == 2


def test_old_decisions_are_told_once(server: HttpServer) -> None:
    answer = data(server)
    newest = answer["columns"]["chat"][-1]["number"]
    assert len(answer["decisions"]) == 2
    assert len(data(server, f"?after={newest}")["decisions"]) == 1


def test_an_after_that_is_no_number_is_refused(server: HttpServer) -> None:
    status, _, content = get(server, "/page.json?after=x")
    assert (status, json.loads(content)) == (
        400,
        {"error": "after has to be the number of a column"},
    )


def test_nothing_that_names_a_client_or_a_process_is_told(
    server: HttpServer, view: ShownView
) -> None:
    told = json.dumps(data(server))
    for secret in (*map(str, view.state["engines"][0]["pids"]), "10.0.3.17", "/v1/chat"):
        assert not re.search(rf"(?<![\d.]){re.escape(secret)}(?!\d)", told), secret


def test_many_who_ask_cost_one_look(server: HttpServer, view: ShownView) -> None:
    for _ in range(20):
        data(server)
    assert len([each for each in view.asked if each[0] == "status"]) <= 3


def test_a_journal_that_cannot_be_read_costs_only_the_decisions(view: ShownView) -> None:
    def refuse(*_: object) -> dict[str, Any]:
        raise ApiError(503, "no journal")

    view.journal = refuse  # type: ignore[method-assign]
    with served(view, columns_of("chat")) as server:
        assert data(server)["decisions"] == []


def test_gpus_are_told_where_there_are_any(view: ShownView) -> None:
    gpu = {
        "device": "GPU 0",
        "from_s": 0,
        "step_s": 5,
        "rows": [{"name": "vllm", "sm_percent": [5]}],
    }
    with served(view, columns_of("chat"), lambda: [gpu]) as server:
        assert data(server)["gpus"] == [gpu]


def test_names_are_told_as_they_are(view: ShownView) -> None:
    view.state["neighbours"][0]["name"] = HOSTILE
    with served(view, columns_of("chat")) as server:
        assert data(server)["neighbours"][0]["name"] == HOSTILE
