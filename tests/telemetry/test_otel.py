"""The end of a kernel with a collector: what is left is sent, and no answer is waited for for long."""

import threading
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.telemetry import otel
from agentos.telemetry.spans import Spans
from agentos_sdk.opcodes import Op
from tests.support.kernel import until
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE


async def test_at_the_end_the_rest_is_sent_and_a_collector_that_never_answers_is_left(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    asked, over = list[int](), threading.Event()

    def hang(exporter: object, resource: object, batch: list[object]) -> bool:
        asked.append(len(batch))
        return over.wait(timeout=PATIENCE)

    monkeypatch.setattr(otel, "send", hang)
    spans = Spans(Registry(), cast(Any, None), contents=False)
    caller = Caller(7, "agent", "tester", Table(()), Grants(), Notebook())
    try:
        async with trio.open_nursery() as kernel:
            spans.end(caller, Op.NOOP, None, b"", b"", 1)
            kernel.start_soon(otel.TraceExporter(spans, "http://127.0.0.1:1").serve)
            while not asked:
                await trio.sleep(otel.INTERVAL)
            for _ in range(2):
                spans.end(caller, Op.NOOP, None, b"", b"", 1)
            began = trio.current_time()
            kernel.cancel_scope.cancel()

        assert trio.current_time() == began + otel.LAST_SECONDS
        until(lambda: asked == [1, 2], "both batches")
    finally:
        over.set()
