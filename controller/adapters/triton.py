"""A driver for NVIDIA Triton, by its gRPC model repository API (the extra `sits[triton]`).

A knob is set by loading the model again with its complete configuration, one field changed: a part
of one is taken too, and then no request works any more. Over gRPC, since the HTTP endpoint serves
such a load on a thread that answers requests.
"""

import http.client
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from controller.adapters.driver import AdapterError, Driver, Figures, Identity
from controller.adapters.listener import Listeners
from controller.adapters.triton_config import knobs, largest_batch, value, with_values
from controller.adapters.triton_figures import Counted, Metrics, count, metrics, statistics
from controller.engines.contract import Knob

log = logging.getLogger(__name__)

CALL_S: Final = 2.0
LOAD_S: Final = 120.0
"""A reload takes as long as the model takes to start."""

NOBODY: Final = "sits-asks-whether-models-can-be-loaded"
"""A model that no repository has: a load of it changes nothing, and the refusal says why."""

CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),
    # gRPC waits up to two minutes before it tries again; a server on this machine is back sooner
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of metrics."""

T = TypeVar("T")


def connect(settings: Mapping[str, str]) -> Driver:
    """`address` is `unix:PATH` or `HOST:PORT`; `metrics` a URL. Nothing is sent yet."""
    return Triton(settings["address"], settings["model"], settings.get("metrics"))


class Triton:
    """One model of one server."""

    def __init__(self, address: str, model: str, metrics_url: str | None) -> None:
        """`AdapterError` if the client library is not installed."""
        try:
            from tritonclient.grpc import InferenceServerClient
            from tritonclient.utils import InferenceServerException
        except ImportError as error:
            raise AdapterError(
                f"could not load Triton's client, tritonclient[grpc]: {error}"
            ) from error
        self._model = model
        self._metrics_url = metrics_url
        self._refusal = InferenceServerException
        self._client: Any = InferenceServerClient(address, channel_args=CHANNEL)
        self._listeners = Listeners(address)
        self._instance = ""
        self._offered: tuple[str, ...] = ()
        self._counted: Counted | None = None
        self._most_items = 0
        self._largest_batch = 1

    def identify(self) -> Identity:
        """Which server answers; its instance is the process that listens."""
        server = self._ask(
            "name itself",
            lambda: self._client.get_server_metadata(as_json=True, client_timeout=CALL_S),
        )
        listener = self._listeners.look()
        self._instance = listener.instance if listener is not None else ""
        return Identity(
            "triton",
            str(server.get("version", "")),
            self._instance or "unknown",
            listener.pid if listener is not None else 0,
        )

    def knobs(self) -> Mapping[str, Knob]:
        """Those of the model; none where the server does not load models when asked to."""
        config = self._config()
        offered = knobs(config)
        if offered and not self._loads_models():
            log.warning(
                "Triton does not load models on demand, so %s can't be retuned: start it with"
                " --model-control-mode=explicit",
                self._model,
            )
            offered = {}
        self._offered = tuple(offered)
        return offered

    def keep(self) -> Mapping[str, object]:
        """Nothing: all but the knobs stays in the configuration that is in force."""
        return {}

    def recall(self, kept: Mapping[str, object]) -> None:
        """Take the knobs that the configuration in force has."""
        self._offered = tuple(knobs(self._config()))

    def read(self) -> Mapping[str, float]:
        """From the configuration in force."""
        config = self._config()
        return {name: value(config, name) for name in self._offered}

    def write(self, values: Mapping[str, float]) -> None:
        """Load the model with its configuration so changed, and wait until it serves with it.

        Requests go on meanwhile: the old instances end theirs while the new ones take the next. A
        configuration that is in force already, or that the server refuses, changes nothing.
        """
        config = self._config()
        if all(value(config, name) == wanted for name, wanted in values.items()):
            return
        listener = self._listeners.look()
        if self._instance != (listener.instance if listener is not None else ""):
            raise AdapterError("could not load the model: Triton has restarted")
        text = json.dumps(with_values(config, values))
        # what was counted until now is about to be forgotten, and new counts soon exceed the old
        self._count()
        began_ns = time.monotonic_ns()
        self._ask(
            f"load model {self._model!r}",
            lambda: self._client.load_model(self._model, config=text, client_timeout=LOAD_S),
        )
        took_ms = (time.monotonic_ns() - began_ns) / 1e6
        self._count()
        changed = ", ".join(f"{name} {wanted:g}" for name, wanted in values.items())
        log.info("Triton loaded model %s with %s in %.0f ms", self._model, changed, took_ms)

    def figures(self) -> Figures:
        """By the metrics where there are some, else by the statistics."""
        counted, seen = self._count(), self._metrics()
        if seen is None:
            return Figures(
                requests_total=counted.requests,
                finished_total=counted.requests,
                prompt_tokens_total=counted.items,
                max_batched_tokens=self._largest_batch,
                steps=counted.steps,
                ended=counted.fresh,
            )
        # what waits is accepted and not counted yet; what is computed is neither
        self._most_items = max(self._most_items, seen.items + (seen.pending or 0))
        return Figures(
            waiting=seen.pending,
            requests_total=seen.finished + (seen.pending or 0),
            finished_total=seen.finished,
            prompt_tokens_total=self._most_items,
            max_batched_tokens=self._largest_batch,
            steps=counted.steps,
            ended=counted.fresh,
        )

    def close(self) -> None:
        """Close the channel."""
        self._client.close()

    def _config(self) -> Mapping[str, Any]:
        """The complete configuration in force.

        `AdapterError` where the server knows fields that this client does not: they would be lost.
        """
        from google.protobuf import json_format

        answer = self._ask(
            f"show the configuration of model {self._model!r}",
            lambda: self._client.get_model_config(self._model, client_timeout=CALL_S),
        )
        config: dict[str, Any] = json_format.MessageToDict(
            answer.config, preserving_proto_field_name=True
        )
        if json_format.ParseDict(config, type(answer.config)()) != answer.config:
            raise AdapterError(
                f"could not take over the configuration of model {self._model!r}: Triton's client"
                " is older than the server, and does not know all of it"
            )
        self._largest_batch = largest_batch(config)
        return config

    def _loads_models(self) -> bool:
        """Whether the server was started with explicit model control; a refusal tells."""
        try:
            self._client.load_model(NOBODY, client_timeout=CALL_S)
        except self._refusal as refusal:
            return "UNAVAILABLE" not in str(refusal.status())
        return True

    def _count(self) -> Counted:
        answer = self._ask(
            f"show the statistics of model {self._model!r}",
            lambda: self._client.get_inference_statistics(
                self._model, as_json=True, client_timeout=CALL_S
            ),
        )
        now, now_ns = statistics(answer.get("model_stats", [])), time.monotonic_ns()
        # the first look counts from here: what was before is not to be told as new
        before = self._counted or Counted(last=now)
        self._counted = count(before, now, now_ns)
        return self._counted

    def _metrics(self) -> Metrics | None:
        if self._metrics_url is None:
            return None
        parts = urlsplit(self._metrics_url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=CALL_S)
        try:
            connection.request("GET", parts.path or "/metrics")
            text = connection.getresponse().read(MOST_BYTES).decode(errors="replace")
            return metrics(text, self._model)
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
            raise AdapterError(f"could not read '{self._metrics_url}': {error}") from error
        finally:
            connection.close()

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._refusal as refusal:
            raise AdapterError(f"Triton would not {what}: {refusal.message()}") from refusal
