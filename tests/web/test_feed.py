"""The feed: when it reads the state of all agents."""

import json
from collections import Counter

import pytest
import trio

from agentos.userland.web.feed import REFRESH_SECONDS, Feed
from agentos_sdk.calls.connection import Hello
from agentos_sdk.client import attach
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel


async def test_events_of_agents_are_shown_without_reading_the_state_but_a_start_makes_the_feed_read_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, feed, sock = Counter[Op](), Feed("unrestricted"), trio.socket.socket(trio.socket.AF_UNIX)
    await sock.connect(kernel.socket)
    async with attach(sock, "feed", Hello(protocol=2)) as client, trio.open_nursery() as nursery:
        exchange = client.exchange

        async def counted(op: Op, body: bytes) -> bytes:
            calls[op] += 1
            return await exchange(op, body)

        monkeypatch.setattr(client, "exchange", counted)
        nursery.start_soon(feed.run, client)
        began = trio.current_time()
        for number in range(20):
            emitted = {"event_type": "custom.tick", "data": {"number": number}}
            await exchange(Op.EMIT, json.dumps(emitted).encode())
            while not any(event["data"] == emitted["data"] for event in feed.state.get("events", ())):
                await trio.sleep(0.01)
        most = (trio.current_time() - began) / REFRESH_SECONDS + 2
        assert calls[Op.LIST] <= most

        await exchange(Op.SPAWN, json.dumps({"name": "short", "command": ["true"]}).encode())
        while not any(row["name"] == "short" for row in feed.state["agents"].values()):
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
