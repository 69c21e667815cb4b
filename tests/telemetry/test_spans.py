"""Spans before they are exported: their number is bounded, and what they hold can be sent."""

from typing import Any, cast

import trio
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from trio.testing import MockClock

from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.services.events import AgentExited, AgentSpawned
from agentos.telemetry.otel import convert_span
from agentos.telemetry.spans import MAX_BATCH, MAX_QUEUED, Span, SpanId, Spans, Value
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook
from tests.support.servers.otlp import read


def test_spans_that_are_not_exported_are_dropped_and_counted() -> None:
    spans = Spans(Registry(), cast(Any, None), contents=False)
    caller = Caller(7, "agent", "tester", Table(()), Grants(), Notebook())
    for _ in range(MAX_QUEUED + 5):
        spans.end(caller, Op.NOOP, None, b"", b"", 1)
    spans.take_event(AgentSpawned(7, "tester"))
    spans.take_event(AgentExited(7, "tester", "stopped"))

    assert spans.dropped == 6
    assert sum(len(spans.take()) for _ in range(MAX_QUEUED // MAX_BATCH + 1)) == MAX_QUEUED


def test_a_question_that_could_not_be_read_is_a_call_that_failed() -> None:
    spans = Spans(Registry(), cast(Any, None), contents=False)
    caller = Caller(7, "agent", "tester", Table(()), Grants(), Notebook())
    spans.end(caller, Op.THINK, b"{", BadRequest("prompt: required field missing"), b"", 1)

    [span] = spans.take()
    assert (span.name, span.sends, span.failed) == ("THINK", False, "bad_request")


async def test_a_whole_batch_is_not_waited_for(autojump_clock: MockClock) -> None:
    spans = Spans(Registry(), cast(Any, None), contents=False)
    caller = Caller(7, "agent", "tester", Table(()), Grants(), Notebook())
    began = trio.current_time()
    for _ in range(2 * MAX_BATCH):
        spans.end(caller, Op.NOOP, None, b"", b"", 1)

    for _ in range(2):
        await spans.wait(1.0)
        assert trio.current_time() == began
        assert len(spans.take()) == MAX_BATCH
    for number in (MAX_BATCH - 1, 1):
        for _ in range(number):
            spans.end(caller, Op.NOOP, None, b"", b"", 1)
        await spans.wait(1.0)
        assert trio.current_time() == began + 1.0, "no whole batch, and then one"


def test_what_protobuf_cannot_hold_loses_no_other_span() -> None:
    attributes: dict[str, Value] = {
        "text": "half \ud800 a pair",
        "large": 1 << 70,
        "list": ["\udfff"],
        "flag": True,
        "share": 0.5,
    }
    span = Span(SpanId(1, 2), SpanId(1, 1), "chat \ud800", 1, 2, attributes, failed="busy")

    [scoped] = encode_spans([convert_span(span, Resource.create({}))]).resource_spans[0].scope_spans
    [encoded] = scoped.spans

    assert scoped.scope.name == "agentos"
    assert encoded.name == "chat ?"
    assert read(encoded.attributes) == {
        "text": "half ? a pair",
        "large": str(1 << 70),
        "list": ["?"],
        "flag": True,
        "share": 0.5,
        "error.type": "busy",
    }
