"""What many requests for metrics at once cost, and take from others."""

import socket

import trio
from trio.testing import MockClock

from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import OPERATOR_RESERVE, ConnectionLimit
from agentos.telemetry.metrics_endpoint import KEEP_SECONDS, Exposition, MetricsEndpoint
from agentos.telemetry.snapshot import Snapshot
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE
from tests.telemetry.test_prometheus import make_snapshot


async def test_one_text_answers_all_requests_of_a_second(autojump_clock: MockClock) -> None:
    taken = 0

    def take() -> Snapshot:
        nonlocal taken
        taken += 1
        return make_snapshot(f"a{taken}")

    exposition = Exposition(take)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(exposition.text, bool(number % 2))
    assert taken == 2

    data, _ = await exposition.text(False)
    await trio.sleep(KEEP_SECONDS)
    later, _ = await exposition.text(False)
    assert taken == 3
    assert b"a3" in later
    assert later != data


async def test_a_request_of_any_user_takes_none_of_the_operators_reserve() -> None:
    caller = Caller(0, "guest", "the metrics endpoint", Table(()), Grants(), Notebook())
    with socket.create_server(("127.0.0.1", 0)) as listener, trio.fail_after(PATIENCE):
        listener.setblocking(False)
        limit, exposition = ConnectionLimit(OPERATOR_RESERVE), Exposition(lambda: make_snapshot("a"))
        endpoint = MetricsEndpoint(listener, limit, caller, exposition, find_user=lambda sock: 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endpoint.serve)
            async with await trio.open_tcp_stream(*listener.getsockname()) as client:
                await client.send_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")

                assert (await client.receive_some()).startswith(b"HTTP/1.1 503")
            nursery.cancel_scope.cancel()
