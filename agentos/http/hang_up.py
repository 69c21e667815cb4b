"""Notices that the client of a TCP connection has disconnected while nothing reads from it."""

from collections.abc import Awaitable, Callable
from socket import IPPROTO_TCP, TCP_INFO
from typing import TypeVar

import trio

from agentos_sdk.errors import CallError

CHECK_SECONDS = 0.5  # between two looks at a client that has sent more than was read
TCP_CLOSE_WAIT = 8  # include/net/tcp_states.h: the peer has closed its sending side
T = TypeVar("T")


async def unless_gone(client: trio.SocketStream, function: Callable[[], Awaitable[T]], patience: float = 0) -> T:
    """Call a function, and cancel it if the client disconnects: then raise ``BrokenResourceError``.

    A client that has closed only its sending side counts as disconnected after ``patience`` seconds: Linux reports both
    alike.
    """
    found: list[T | CallError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_gone, client, nursery.cancel_scope, patience)
        try:
            found.append(await function())
        except CallError as error:
            found.append(error)
        nursery.cancel_scope.cancel()
    if not found:
        raise trio.BrokenResourceError("the client has disconnected")
    if isinstance(found[0], CallError):
        raise found[0]
    return found[0]


async def cancel_when_gone(client: trio.SocketStream, scope: trio.CancelScope, patience: float) -> None:
    """Cancel ``scope`` when the client has disconnected, or ``patience`` seconds after it closed its sending side."""
    try:
        if await client.socket.recv(1, trio.socket.MSG_PEEK):
            # The end behind data that nothing has read yet wakes no reader.
            while client.getsockopt(IPPROTO_TCP, TCP_INFO, 1)[0] != TCP_CLOSE_WAIT:  # noqa: ASYNC110
                await trio.sleep(CHECK_SECONDS)
        await trio.sleep(patience)
    except OSError:
        pass  # reset
    scope.cancel()
