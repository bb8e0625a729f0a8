"""The metrics only for those who give a name and a password that hold (RFC 7617)."""

from collections.abc import Callable, Iterable
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

OPEN: Final = "/healthz"
"""Asked without a password it says whether all is well, and nothing else: probes have none."""

_ASK: Final = [("WWW-Authenticate", 'Basic realm="sitsd", charset="UTF-8"')]


def guarded(app: WSGIApplication, admits: Callable[[str], bool]) -> WSGIApplication:
    """`app` for those whose `Authorization` header `admits` lets in."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if admits(str(environ.get("HTTP_AUTHORIZATION", ""))):
            return app(environ, start_response)
        if environ.get("PATH_INFO") == OPEN:
            return _status_only(app, environ, start_response)
        content = b"a name and a password are needed\n"
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(content))), *_ASK]
        start_response("401 Unauthorized", headers)
        return [content]

    return answer


def _status_only(
    app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """What `app` says, without its words."""
    statuses: list[str] = []

    def take(status: str, headers: list[tuple[str, str]], _: object = None) -> Callable[..., None]:
        statuses.append(status)
        return lambda _: None

    for _ in app(environ, take):
        pass
    content = f"{statuses[0].partition(' ')[0]}\n".encode()
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(content)))]
    start_response(statuses[0], headers)
    return [content]
