"""A recorded contract, not SGLang: its admin API as its source has it, for want of a GPU here.

From SGLang 0.5.23's wheel on PyPI (sha256 00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9
d859937): srt/managers/scheduler_components/internal_state.py, srt/entrypoints/http_server.py,
srt/entrypoints/v1_loads.py, srt/utils/auth.py, srt/managers/load_snapshot.py. The update handlers
are the same in the repository at commit 2784deeea9dab0f20bcaaf1561734fbdfd7e1774. What `later`
offers is of pull request 37661, which is not merged. Nothing here computes.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = "0.5.23"


@dataclass
class Recorded:
    """A server's state. `refusing` are ranks that refuse everything, as a fault would make them."""

    ranks: int = 1
    pp_size: int = 1
    max_running_requests: int = 48
    later: bool = False
    api_key: str = ""
    admin_api_key: str = ""
    has_loads: bool = True
    refusing: frozenset[int] = frozenset()
    states: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        # each rank resolves its own configuration (runtime_context, scheduler_components)
        self.states = [
            {
                "max_running_requests": self.max_running_requests,
                "effective_max_running_requests_per_dp": self.max_running_requests,
                "pp_max_micro_batch_size": self.max_running_requests // self.pp_size,
                "pp_size": self.pp_size,
                "chunked_prefill_size": 8192,
                "max_queued_requests": 500 if self.later else None,
            }
            for _ in range(self.ranks)
        ]
        self.loads = [self.load(rank) for rank in range(self.ranks)]

    def load(self, rank: int) -> dict[str, Any]:
        """The core of a rank's load (_CORE_KEYS)."""
        return {
            "dp_rank": rank,
            "num_running_reqs": 0,
            "num_waiting_reqs": 0,
            "num_waiting_uncached_tokens": 0,
            "num_used_tokens": 0,
            "max_total_num_tokens": 100_000,
            "max_running_requests": self.max_running_requests,
            "total_prefill_uncached_tokens": 0,
            "total_prefill_busy_us": 0,
            "decode_moments": None,
        }

    def set(self, server_args: dict[str, Any]) -> list[bool]:
        """A rank checks every key before it takes any; unknown ones are refused."""
        return [self._set_rank(rank, server_args) for rank in range(self.ranks)]

    def _set_rank(self, rank: int, server_args: dict[str, Any]) -> bool:
        most = self.max_running_requests
        limits = {"pp_max_micro_batch_size": most // self.pp_size}
        if self.later:
            limits |= {
                "max_running_requests": most,
                "max_queued_requests": 2**31,
                "chunked_prefill_size": 2**31,
            }
        fits = all(
            name in limits and 1 <= value <= limits[name] for name, value in server_args.items()
        )
        if not fits or rank in self.refusing:
            return False
        self.states[rank] |= server_args
        return True

    def is_allowed(self, header: str | None, *, admin: bool) -> bool:
        """`decide_request_auth` for levels normal and admin_optional."""
        key = (self.admin_api_key or self.api_key) if admin else self.api_key
        return not key or header == f"Bearer {key}"


@contextmanager
def recorded_sglang(**options: Any) -> Iterator[Recorded]:
    """The contract served on a free port of this machine."""
    state = Recorded(**options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not state.is_allowed(self.headers.get("Authorization"), admin=False):
                self._answer(401, {"error": "Unauthorized"})
            elif self.path == "/server_info":
                self._answer(200, {"version": VERSION, "internal_states": state.states})
            elif self.path.startswith("/v1/loads") and state.has_loads:
                self._answer(200, {"version": VERSION, "loads": state.loads})
            else:
                self._answer(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not state.is_allowed(self.headers.get("Authorization"), admin=True):
                self._answer(401, {"error": "Unauthorized"})
            elif self.path != "/set_internal_state":
                self._answer(404, {"detail": "Not Found"})
            else:
                state.posted.append(body["server_args"])
                self._answer(200, state.set(body["server_args"]))

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's)
            pass

        def _answer(self, status: int, body: Any) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
