"""Spans before they are exported: their number is bounded, and what they hold can be sent."""

from typing import Any, cast

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.telemetry.otel import convert_span
from agentos.telemetry.spans import MAX_QUEUED, Span, SpanId, Spans, Value
from agentos_sdk.opcodes import Op
from tests.support.otlp import read
from tests.support.rights import Grants, Notebook


def test_spans_that_are_not_exported_are_dropped_and_counted() -> None:
    spans = Spans(Registry(), cast(Any, None), contents=False)
    caller = Caller(7, "agent", "tester", Table(()), Grants(), Notebook())
    for _ in range(MAX_QUEUED + 5):
        spans.observe(caller, Op.NOOP, None, b"", 1)

    assert spans.dropped == 5
    assert len(spans.take(MAX_QUEUED + 5)) == MAX_QUEUED


def test_what_protobuf_cannot_hold_loses_no_other_span() -> None:
    attributes: dict[str, Value] = {
        "text": "half \ud800 a pair",
        "large": 1 << 70,
        "list": ["\udfff"],
        "flag": True,
        "share": 0.5,
    }
    span = Span(SpanId(1, 2), SpanId(1, 1), "chat \ud800", 1, 2, attributes, failed="busy")

    [encoded] = encode_spans([convert_span(span, Resource.create({}))]).resource_spans[0].scope_spans[0].spans

    assert encoded.name == "chat ?"
    assert read(encoded.attributes) == {
        "text": "half ? a pair",
        "large": str(1 << 70),
        "list": ["?"],
        "flag": True,
        "share": 0.5,
        "error.type": "busy",
    }
