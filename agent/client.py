"""The other end of the admin API: one request a connection, and an error a person can act on."""

import json
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from agent.unix_http import NotHttpError, exchange

TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024

_RETRY_S: Final = 0.02


class ClientError(Exception):
    """The agent did not do what it was asked; the message is for people."""


class UnreachableError(ClientError):
    """There is no agent at the socket, it may not be used, or what answers is not the agent."""


class RefusedError(ClientError):
    """The agent answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AgentClient:
    """The agent behind the admin socket at `path`, call by call; see `agent.agent_view.AgentView`.

    Each call raises `ClientError`. `timeout_s` bounds each wait for the agent.
    """

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Nothing is opened before the first call."""
        self.path = path
        self.timeout_s = timeout_s

    def status(self) -> dict[str, Any]:
        """The whole agent."""
        return self._get("status")

    def engines(self) -> dict[str, Any]:
        """Every engine of the policy."""
        return self._get("engines")

    def streams(
        self, engine: str | None = None, after: int | None = None, limit: int = 100
    ) -> dict[str, Any]:
        """Ended streams, oldest first: those next above `after`, or the newest."""
        return self._get("streams", engine=engine, after=after, limit=limit)

    def explain(self, engine: str | None = None, seconds: float = 30) -> dict[str, Any]:
        """Why an engine (None: the only one) was slow."""
        return self._get("explain", engine=engine, seconds=f"{seconds:.15g}")

    def stages(
        self,
        engine: str | None = None,
        seconds: float = 30,
        factor: float | None = None,
        floor: float | None = None,
    ) -> dict[str, Any]:
        """The stages of an engine (None: the only one), with the detector's k and floor."""
        given = {
            name: None if value is None else f"{value:.15g}"
            for name, value in (("seconds", seconds), ("factor", factor), ("floor", floor))
        }
        return self._get("stages", engine=engine, **given)

    def neighbours(self) -> dict[str, Any]:
        """Who shares the machine, the classes, and who took the CPU unnamed."""
        return self._get("neighbours")

    def gpu(self) -> dict[str, Any]:
        """The GPUs, who is on them, and their heat maps."""
        return self._get("gpu")

    def journal(
        self,
        limit: int = 20,
        engine: str | None = None,
        before: int | None = None,
        order: str | None = None,
    ) -> dict[str, Any]:
        """The newest decisions, or with `order` "worst" those with the worst outcome; events."""
        return self._get("journal", limit=limit, engine=engine, before=before, order=order)

    def policy(self) -> dict[str, Any]:
        """The policy in force."""
        return self._get("policy")

    def policy_diff(self, text: str, source: str) -> dict[str, Any]:
        """What the policy in `text` would change; `source` is what to call it."""
        return self._post("policy/diff", text=text, source=source)

    def policy_apply(self, text: str, source: str, temporary: bool = False) -> dict[str, Any]:
        """Put the policy in `text` in force, and in the agent's file unless it is temporary."""
        given = {"temporary": "true"} if temporary else {}
        return self._post("policy/apply", text=text, source=source, **given)

    def policy_try(
        self, text: str, source: str, seconds: float, engine: str | None = None
    ) -> dict[str, Any]:
        """Try the policy in `text` for so long, on an engine if one is named."""
        given = {} if engine is None else {"engine": engine}
        return self._post(
            "policy/apply", text=text, source=source, canary_s=f"{seconds:.15g}", **given
        )

    def policy_abort(self, reason: str = "") -> dict[str, Any]:
        """End the trial under way with the old policy."""
        return self._post("policy/abort", reason=reason)

    def policy_status(self) -> dict[str, Any]:
        """Which policy is in force, and the trial under way, or the last one."""
        return self._get("policy/status")

    def policy_reload(self) -> dict[str, Any]:
        """Have the agent read its policy file again."""
        return self._post("policy/reload")

    def doctor(self) -> dict[str, Any]:
        """What the agent's kernel and privileges allow."""
        return self._get("doctor")

    def set_mode(self, mode: str, reason: str = "") -> dict[str, Any]:
        """Change the mode."""
        return self._post("mode", mode=mode, reason=reason)

    def inject(self, what: str, value: float, seconds: float, reason: str) -> dict[str, Any]:
        """Tell of backpressure, 0 to 1, that the agent can't see."""
        return self._post(
            "inject", what=what, value=f"{value:.15g}", seconds=f"{seconds:.15g}", reason=reason
        )

    def set_knobs(
        self,
        values: Mapping[str, float],
        engines: Iterable[str] = (),
        lease_s: float = 60,
        reason: str = "",
    ) -> dict[str, Any]:
        """Set knobs by hand, on these engines or the only one there is."""
        return self._post(
            "set",
            values="\n".join(f"{name}={value:.15g}" for name, value in values.items()),
            engines="\n".join(engines),
            lease_s=f"{lease_s:.15g}",
            reason=reason,
        )

    def release(self, engines: Iterable[str] = (), reason: str = "") -> dict[str, Any]:
        """Give back what was set by hand, on these engines or on all."""
        return self._post("release", engines="\n".join(engines), reason=reason)

    def _post(self, call: str, **fields: str) -> dict[str, Any]:
        # not escaped: a policy in a script other than Latin's should not be three times as long;
        # half a character, as in a file's name that is no UTF-8, JSON can only have escaped
        body = json.dumps(fields, ensure_ascii=False).encode(errors="backslashreplace")
        return self._ask("POST", f"/v1/{call}", body)

    def _get(self, call: str, **query: object) -> dict[str, Any]:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return self._ask("GET", f"/v1/{call}?{given}" if given else f"/v1/{call}")

    def _ask(self, method: str, target: str, body: bytes | None = None) -> dict[str, Any]:
        try:
            with _connect(self.path, self.timeout_s) as sock:
                status, content = exchange(sock, method, target, body, MAX_ANSWER_BYTES + 1)
        except (OSError, NotHttpError) as error:
            raise UnreachableError(_unreachable(self.path, self.timeout_s, error)) from None
        return _answer(self.path, status, content)


def _connect(path: Path, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        give_up = time.monotonic() + timeout_s
        while True:
            try:
                sock.connect(str(path))
                break
            except BlockingIOError:  # so many wait to be let in that there is no place to wait
                if time.monotonic() > give_up:
                    raise TimeoutError from None
                time.sleep(_RETRY_S)
    except BaseException:
        sock.close()
        raise
    return sock


def _unreachable(path: Path, timeout_s: float, error: Exception) -> str:
    could_not = f"could not reach sitsd at '{path}'"
    match error:
        case FileNotFoundError():
            why = "no such socket; is it running? `systemctl status sitsd`"
        case ConnectionRefusedError():
            why = "nobody listens; is it running? `systemctl status sitsd`"
        case PermissionError():
            why = f"permission denied; {_who_may(path)}"
        case TimeoutError():
            why = f"no answer within {timeout_s:g} s; is it well? `journalctl -u sitsd`"
        case NotHttpError():
            return _nonsense(path, "not HTTP")
        case ConnectionError():
            why = "it hung up without an answer; is it well? `journalctl -u sitsd`"
        case OSError():
            why = (error.strerror or str(error)).lower()
        case _:
            why = str(error)
    return f"{could_not}: {why}"


def _who_may(path: Path) -> str:
    """Who may use the socket, as far as this user can see."""
    try:
        admits_group = path.stat().st_mode & stat.S_IWGRP
        who = f"{path.owner()} and the group {path.group()}" if admits_group else path.owner()
    except (OSError, KeyError):
        who = "root"
    return f"{who} may use it: `sudo sitsctl …`"


def _nonsense(path: Path, why: str) -> str:
    return f"what listens at '{path}' does not answer like sitsd: {why}; is it the right socket?"


def _answer(path: Path, status: int, content: bytes) -> dict[str, Any]:
    if len(content) > MAX_ANSWER_BYTES:
        raise UnreachableError(_nonsense(path, f"over {MAX_ANSWER_BYTES} bytes"))
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        if status == 503:
            raise RefusedError(status, f"sitsd at '{path}' is busy; try again")
        raise UnreachableError(_nonsense(path, "not a JSON object"))
    if status != 200:
        raise RefusedError(status, f"sitsd: {answer.get('error', f'status {status}')}")
    return answer
