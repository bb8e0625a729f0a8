"""A driver for SGLang, by its HTTP admin API: `POST /set_internal_state`, `GET /server_info`.

Which keys a server lets change differs by version (one useful in 0.5.23, more in pull request
37661), so each is probed: it is set to what it is. A refusal is HTTP 200 too, with `false` for each
data-parallel rank that refused, so what counts is what is read back.
"""

import http.client
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.adapters.driver import AdapterError, Driver, Figures, Identity
from controller.adapters.listener import Listeners
from controller.adapters.sglang_figures import Load, load, mean_steps
from controller.engines.contract import KNOBS, Knob

log = logging.getLogger(__name__)

CALL_S: Final = 5.0
"""The scheduler answers between two of its steps."""

MOST_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Key:
    """A knob's name with the server, and what limits it if not its value at the start."""

    knob: str
    name: str
    most: str | None = None


KEYS: Final = (
    Key("max_running", "max_running_requests"),
    # a cap on each micro batch; without pipeline stages that is all that runs
    Key("max_running", "pp_max_micro_batch_size", "effective_max_running_requests_per_dp"),
    Key("max_queued", "max_queued_requests"),
    Key("long_prefill_tokens", "chunked_prefill_size"),
)
"""In the order of preference, where several are the same knob."""


def connect(settings: Mapping[str, str]) -> Driver:
    """`address` is `HOST:PORT`; the files have a server's API keys, if it has any."""
    return SGLang(settings["address"], settings.get("key_file"), settings.get("admin_key_file"))


class SGLang:
    """One server. Values are those of each data-parallel rank, which has a batch of its own."""

    def __init__(self, address: str, key_file: str | None, admin_key_file: str | None) -> None:
        """With an `--admin-api-key` that alone may change state; it is `key_file`'s otherwise."""
        self._address = address
        self._key_file = key_file
        self._admin_key_file = admin_key_file or key_file
        self._listeners = Listeners(address)
        self._instance = ""
        self._keys: Mapping[str, str] = {}
        self._load: Load | None = None
        self._steps = 0

    def identify(self) -> Identity:
        """Which server answers; its instance is the process that listens."""
        info = self._info()
        listener = self._listeners.look()
        self._instance = listener.instance if listener is not None else ""
        return Identity(
            "sglang",
            str(info.get("version", "")),
            self._instance or "unknown",
            listener.pid if listener is not None else 0,
        )

    def knobs(self) -> Mapping[str, Knob]:
        """What the server lets change, found out by setting each key to what it is."""
        state = self._states()[0]
        # with pipeline stages there are several micro batches, and no cap on all of them
        staged = int(state.get("pp_size") or 1) > 1
        found: dict[str, Knob] = {}
        keys = {}
        for key in KEYS:
            start = state.get(key.name)
            if key.knob in found or type(start) is not int or start < 1:
                continue
            if (key.most is not None and staged) or not self._set({key.name: start}):
                continue
            most = max(start, int(state.get(key.most) or 0)) if key.most is not None else start
            found[key.knob] = Knob(key.knob, 1, most, start, KNOBS[key.knob])
            keys[key.knob] = key.name
        self._keys = keys
        return found

    def keep(self) -> Mapping[str, object]:
        """Which of the server's keys is which knob."""
        return dict(self._keys)

    def recall(self, kept: Mapping[str, object]) -> None:
        """Take the keys for what they were."""
        self._keys = {knob: str(name) for knob, name in kept.items()}

    def read(self) -> Mapping[str, float]:
        """From the state of the ranks; where they differ, the lowest."""
        states = self._states()
        try:
            return {
                knob: min(int(state[name]) for state in states) for knob, name in self._keys.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise AdapterError(f"SGLang shows no usable state: {error!r}") from error

    def write(self, values: Mapping[str, float]) -> None:
        """Set what differs, in one call: a rank takes all of it or nothing."""
        found = self.read()
        changed = {
            self._keys[knob]: int(value) for knob, value in values.items() if value != found[knob]
        }
        if not changed:
            return
        listener = self._listeners.look()
        if self._instance != (listener.instance if listener is not None else ""):
            raise AdapterError("could not set the state: SGLang has restarted")
        if not self._set(changed):
            wanted = ", ".join(f"{name} {value}" for name, value in changed.items())
            raise AdapterError(f"SGLang refused {wanted}; its log says why")

    def figures(self) -> Figures:
        """What the ranks tell, together; how long a request has waited they do not."""
        status, answer = self._ask("GET", "/v1/loads?include=core")
        ranks = answer.get("loads") if isinstance(answer, dict) else None
        if status == http.client.NOT_FOUND or not isinstance(ranks, list) or not ranks:
            return Figures()
        try:
            now = load(ranks)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise AdapterError(f"SGLang tells a load that is none: {error!r}") from error
        before = self._load or now
        ended = mean_steps(before, now, self._steps, time.monotonic_ns(), len(ranks))
        if ended:
            self._steps = ended[-1].index
        self._load = now
        return Figures(
            waiting=now.waiting,
            running=now.running // len(ranks),
            waiting_tokens=now.waiting_tokens,
            oldest_arrival_ns=0,
            kv_used=now.kv_used // len(ranks),
            kv_total=now.kv_total // len(ranks),
            # computed and not only accepted: what waits is accepted too
            prompt_tokens_total=now.prompt_tokens + now.waiting_tokens,
            generated_tokens_total=now.generated,
            steps=self._steps,
            ended=ended,
        )

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _info(self) -> Mapping[str, Any]:
        status, answer = self._ask("GET", "/server_info")
        if status != http.client.OK or not isinstance(answer, dict):
            raise AdapterError(f"SGLang at {self._address} would not tell its state: HTTP {status}")
        return answer

    def _states(self) -> list[Mapping[str, Any]]:
        states = self._info().get("internal_states")
        if not isinstance(states, list) or not states or not isinstance(states[0], dict):
            raise AdapterError(f"SGLang at {self._address} shows no internal state")
        return states

    def _set(self, server_args: Mapping[str, int]) -> bool:
        """Whether every rank took them."""
        status, answer = self._ask("POST", "/set_internal_state", {"server_args": server_args})
        if status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
            raise AdapterError(f"SGLang at {self._address} wants another API key: HTTP {status}")
        took = answer if status == http.client.OK and isinstance(answer, list) else []
        return bool(took) and all(each is True for each in took)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        """The status of an answer, and what is in it; None if that is no JSON."""
        key_file = self._key_file if body is None else self._admin_key_file
        headers = {"Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._address, timeout=CALL_S)
        try:
            if key_file is not None:
                headers["Authorization"] = f"Bearer {Path(key_file).read_text().strip()}"
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            said = response.read(MOST_BYTES)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AdapterError(f"could not ask SGLang at {self._address}: {error}") from error
        finally:
            connection.close()
        try:
            return response.status, json.loads(said)
        except (ValueError, RecursionError):
            return response.status, None
