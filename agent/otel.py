"""OpenTelemetry's own exporters behind `SpanExporter`.

Importing this loads the SDK (and with it 20 to 30 MB), so it is imported only when the policy has a
collector. Its exporters try again by themselves within their time-out, honour a collector's
Retry-After, and log each attempt; here the first of it becomes the reason for a failure instead.
"""

import logging
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from agent.request_head import SpanRef
from agent.spans import Span
from controller.plain import plain
from controller.policy_model import Otel

_HTTP_PATH: Final = "/v1/traces"
_LOGGER: Final = "opentelemetry.exporter"
_WHY_CHARACTERS: Final = 300


class OtlpExporter:
    """Takes spans to the collector of a policy."""

    def __init__(self, settings: Otel) -> None:
        """`settings` has an endpoint; nothing is connected yet."""
        self._resource = _resource(settings)
        self._scope = InstrumentationScope("sits", version("sits"))
        self._first_words = _FirstWords()
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._first_words)
        logger.propagate = False
        self._exporter = _exporter(settings)

    def export(self, spans: Sequence[Span]) -> str:
        """Hand over `spans`; empty if the collector took them, else why it did not."""
        self._first_words.text = ""
        try:
            result = self._exporter.export([self._converted(span) for span in spans])
        except Exception as error:
            # the exporter is another's: whatever it raises must not end the thread
            return plain(f"{type(error).__name__}: {error}"[:_WHY_CHARACTERS])
        if result is SpanExportResult.SUCCESS:
            return ""
        return plain(self._first_words.text[:_WHY_CHARACTERS]) or "the exporter does not say why"

    def close(self) -> None:
        """Give up what is under way and let go."""
        self._exporter.shutdown()
        logger = logging.getLogger(_LOGGER)
        logger.removeHandler(self._first_words)
        logger.propagate = True

    def _converted(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.ref),
            parent=None if span.parent is None else _context(span.parent, remote=True),
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(each.name, timestamp=each.at_ns) for each in span.events],
            links=[Link(_context(each)) for each in span.links],
            kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


class _FirstWords(logging.Handler):
    """Keeps the first thing said of an export; what follows only tells that it was given up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


def _exporter(settings: Otel) -> SpanExporter:
    endpoint, headers = settings.endpoint or "", dict(settings.headers)
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter(
            endpoint=endpoint,
            insecure=urlsplit(endpoint).scheme == "http",
            headers=headers,
            timeout=settings.timeout_ms / 1e3,
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter as HttpExporter,
    )

    path = "" if endpoint.endswith(_HTTP_PATH) else _HTTP_PATH
    return HttpExporter(
        endpoint=endpoint.rstrip("/") + path,
        headers=headers,
        timeout=settings.timeout_ms / 1e3,
    )


def _resource(settings: Otel) -> Resource:
    return Resource(
        {
            "service.name": "sitsd",
            "service.version": version("sits"),
            "host.name": platform.node(),
            "os.type": platform.system().lower(),
            **settings.resource,
        }
    )


def _context(ref: SpanRef, *, remote: bool = False) -> SpanContext:
    return SpanContext(ref.trace_id, ref.span_id, remote, TraceFlags(TraceFlags.SAMPLED))
