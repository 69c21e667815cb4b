"""Export of spans to an OpenTelemetry collector, by OTLP over HTTP, in a thread."""

import logging
from collections.abc import Sequence

import trio
from attrs import define
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agentos import __version__

from .spans import Span, SpanId, Spans, Value

log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between two exports at most
TELL_INTERVAL = 60.0  # seconds between two messages about spans for which there was no room
TIMEOUT = 5.0  # seconds in which a request has to be answered, retries included
LAST_SECONDS = 2.0  # seconds for what is left when the kernel ends
FLAGS = TraceFlags(TraceFlags.SAMPLED)
SCOPE = InstrumentationScope("agentos", __version__)


@define(eq=False)
class TraceExporter:
    """Sends queued ``spans`` to ``endpoint``, a URL without a path."""

    spans: Spans
    endpoint: str
    _failing: bool = False
    _told: int = 0  # dropped spans that are in the log already
    _told_at: float = float("-inf")  # Trio's time of the last such message while exports worked

    async def serve(self) -> None:
        """Export until cancelled, then export the remaining spans."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs each attempt; ours are logged below
        exporter = OTLPSpanExporter(endpoint=f"{self.endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT)
        resource = Resource.create({"service.name": "agentos", "service.version": __version__})
        try:
            while True:
                await self.spans.wait(INTERVAL)
                await self._export(exporter, resource)
        finally:
            with trio.move_on_after(LAST_SECONDS, shield=True):
                await self._export(exporter, resource)

    async def _export(self, exporter: OTLPSpanExporter, resource: Resource) -> None:
        """Export the queued spans; a batch that can't be sent is dropped."""
        while batch := self.spans.take():
            sent = await trio.to_thread.run_sync(send, exporter, resource, batch, abandon_on_cancel=True)
            if not sent:
                self.spans.dropped += len(batch)
            self._tell(sent)

    def _tell(self, sent: bool) -> None:
        """Log when exports begin to fail or work again, and how many spans were dropped."""
        dropped, now = self.spans.dropped - self._told, trio.current_time()
        if not sent:
            if not self._failing:
                problem = "traces can't be sent to %s ([otel] endpoint): they are dropped until they can"
                log.warning(problem, self.endpoint)
        elif self._failing:
            log.info("traces are sent to %s again; %d spans were dropped", self.endpoint, dropped)
            self._told += dropped
        elif dropped and now >= self._told_at + TELL_INTERVAL:
            log.warning("%d spans were dropped: there were more than %s takes in time", dropped, self.endpoint)
            self._told, self._told_at = self._told + dropped, now
        self._failing = not sent


def send(exporter: OTLPSpanExporter, resource: Resource, batch: Sequence[Span]) -> bool:
    """Send a batch; returns whether the collector has taken it. Blocks."""
    return exporter.export([convert_span(span, resource) for span in batch]) is SpanExportResult.SUCCESS


def convert_span(span: Span, resource: Resource) -> ReadableSpan:
    attributes = {key: make_sendable(value) for key, value in span.attributes.items()}
    if span.failed is not None:
        attributes["error.type"] = span.failed
    return ReadableSpan(
        name=span.name.encode(errors="replace").decode(),
        context=make_context(span.id),
        parent=make_context(span.parent) if span.parent is not None else None,
        resource=resource,
        attributes=attributes,
        kind=SpanKind.CLIENT if span.sends else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.failed) if span.failed is not None else Status(),
        start_time=span.began,
        end_time=span.ended,
        instrumentation_scope=SCOPE,
    )


def make_sendable(value: Value) -> Value:
    """What protobuf takes: text without half surrogate pairs, numbers of 64 bits."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, int) and value.bit_length() > 63:
        return str(value)
    return value if isinstance(value, int | float) else [str(make_sendable(each)) for each in value]


def make_context(span: SpanId) -> SpanContext:
    return SpanContext(span.trace, span.span, is_remote=False, trace_flags=FLAGS)
