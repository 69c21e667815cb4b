"""Messages of a page: how many a second are read, and how many calls are open at once."""

import json
from typing import Any, cast

import trio
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentos.userland.web.page import MAX_BURST, MAX_CALLS, MESSAGES_PER_SECOND, Browsers, Page
from agentos.userland.web.sessions import Session
from agentos_sdk.client import Kernel
from agentos_sdk.opcodes import Op

USE = '{"type":"use"}'
OPERATOR = Session("1", "secret", "operator", None, "here", started=0.0, used=0.0, browser="")


class Socket:
    """A browser that sends these messages as fast as they are read, after so many seconds where it is a number."""

    def __init__(self, messages: list[str | int]) -> None:
        self.messages = messages

    async def receive_text(self) -> str:
        while self.messages:
            if isinstance(message := self.messages.pop(0), str):
                return message
            await trio.sleep(message)
        raise WebSocketDisconnect


class Used:
    """The times at which a person used the page."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def use(self, session: Session) -> None:
        self.times.append(trio.current_time())


class Silent:
    """A kernel that answers no call."""

    async def exchange(self, op: Op, body: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError


async def read(socket: Socket, used: Used) -> list[dict[str, Any]]:
    """The replies, up to the page's last message."""
    page = Page(cast(WebSocket, socket), OPERATOR, cast(Any, None), cast(Browsers, used))
    async with trio.open_nursery() as nursery:
        try:
            await page._read(cast(Kernel, Silent()), nursery)
        except WebSocketDisconnect:
            nursery.cancel_scope.cancel()
    return [json.loads(each) for each in page._replies]


async def test_after_a_burst_messages_are_read_at_their_rate(autojump_clock: object) -> None:
    used, burst = Used(), int(MAX_BURST)
    began = trio.current_time()

    await read(Socket([*[USE] * (burst + 100), 3600, *[USE] * (burst + 1)]), used)

    late = [round((at - began) * MESSAGES_PER_SECOND) for at in used.times]  # in messages
    after = 100 + 3600 * int(MESSAGES_PER_SECOND)
    assert late == [*[0] * burst, *range(1, 101), *[after] * burst, after + 1]


async def test_a_call_beyond_the_open_ones_is_refused_as_is_an_id_that_is_open() -> None:
    calls = [*range(MAX_CALLS), MAX_CALLS]

    replies = await read(Socket([f'{{"type":"call","id":{number},"call":"NOOP"}}' for number in calls]), Used())
    [twice] = await read(Socket(['{"type":"call","id":7,"call":"NOOP"}'] * 2), Used())

    assert [(one["id"], one["reply"]["code"]) for one in [*replies, twice]] == [(MAX_CALLS, "busy"), (7, "busy")]
