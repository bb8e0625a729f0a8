"""Serving the page: one document with its style and script in it, and the JSON it asks for."""

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from agent.http import answer_bytes, answer_json
from agent.page.answer import PageAnswer

PAGE: Final = "/"
DATA: Final = "/page.json"

_ALWAYS: Final = (
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)


def page_routes(answer: PageAnswer) -> Mapping[str, WSGIApplication]:
    """The page at `/` and its data, for `agent.http.metrics_app`."""
    content, policy = document()
    headers = (*_ALWAYS, ("Content-Security-Policy", policy))

    def page(_: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return answer_bytes(start_response, 200, "text/html; charset=utf-8", content, headers)

    def data(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = parse_qs(environ.get("QUERY_STRING", "")).get("after", ["-1"])[-1]
        try:
            after = int(asked)
        except ValueError:
            problem = {"error": "after has to be the number of a column"}
            return answer_json(start_response, 400, problem, _ALWAYS)
        return answer_json(start_response, 200, answer(after), _ALWAYS)

    return {PAGE: page, DATA: data}


def document() -> tuple[bytes, str]:
    """The page, and the content security policy under which it may do just what it does.

    Only this style and this script run, only this host is asked, and nobody may frame it.
    """
    source = files("agent.page")
    style = (source / "page.css").read_text("utf-8")
    script = (source / "page.js").read_text("utf-8")
    html = (source / "index.html").read_text("utf-8")
    html = html.replace("/*page.css*/", style).replace("/*page.js*/", script)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )
    return html.encode(), policy


def _hash(text: str) -> str:
    """As `script-src` wants it (https://www.w3.org/TR/CSP3/#grammardef-hash-source)."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
