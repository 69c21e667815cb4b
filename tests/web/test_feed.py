"""The feed: when it reads the state of all agents."""

import json
from collections import Counter
from typing import Any, cast

import pytest
import trio

from agentos.userland.web.feed import REFRESH_SECONDS, Feed, encode
from agentos.userland.web.page import Page
from agentos_sdk.calls.connection import Hello
from agentos_sdk.client import attach
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel


async def test_events_of_agents_are_shown_without_reading_the_state_but_a_start_makes_the_feed_read_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, feed, sock = Counter[Op](), Feed("operator"), trio.socket.socket(trio.socket.AF_UNIX)
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


class Shown:
    """A page that keeps what it gets."""

    def __init__(self) -> None:
        self.changes: list[Any] = []
        self.came = trio.Event()

    def change(self, text: bytes) -> None:
        self.changes.append(json.loads(text))
        self.came.set()


class Answering:
    """A kernel with one agent; its texts have half a surrogate pair."""

    async def exchange(self, op: Op, body: bytes) -> bytes:
        if op == Op.LIST:
            return rb'[{"id":1,"name":"\udc00","state":"running","uptime_ms":5}]'
        return rb'{"success":true,"seq":0,"boot":"b","pending":[],"up_ms":0}'


class Streaming:
    """A stream of one event."""

    def __init__(self, *arguments: object) -> None:
        self.chunks = [rb'{"events":[{"type":"CUSTOM","data":"\ud800"}]}']

    async def __aenter__(self) -> "Streaming":
        return self

    async def __aexit__(self, *failure: object) -> None:
        pass

    def __aiter__(self) -> "Streaming":
        return self

    async def __anext__(self) -> bytes:
        if not self.chunks:
            await trio.sleep_forever()
        return self.chunks.pop()


async def test_half_a_surrogate_pair_in_an_event_or_in_a_reply_is_shown_and_ends_no_feed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    monkeypatch.setattr("agentos.userland.web.feed.RawStream", Streaming)
    page, feed = Shown(), Feed("operator")
    feed.pages.add(cast(Page, page))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.run, cast(Any, Answering()))
            while not any("events" in change["delta"] for change in page.changes):
                page.came = trio.Event()
                await page.came.wait()
            nursery.cancel_scope.cancel()

    [agents] = [change["delta"]["agents"] for change in page.changes if "agents" in change["delta"]]
    [events] = [change["delta"]["events"] for change in page.changes if "events" in change["delta"]]
    assert agents["1"]["name"] == "\udc00"
    assert events == [{"type": "CUSTOM", "data": "\ud800"}]
    assert json.loads(encode(feed.state))["events"] == events
