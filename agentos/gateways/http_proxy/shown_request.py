"""What a person sees of a tunnel or request through the proxy that a rule asks about, and what approval is bound to.

The body of such a request is received before the person is asked, and sent on after that.
"""

from typing import Final

import trio

from agentos.kernel.ports import Right
from agentos.permissions.approvals.text import describe_http, describe_right
from agentos.services.http.destination import Destination
from agentos_sdk.errors import BadRequest, Timeout, TooLarge

from .approval import Shown
from .incoming import Body
from .refusal import CONTINUE
from .request_head import RequestHead

MAX_BODY: Final = 256 << 10  # bytes of a body that are held while a person thinks; an agent has at most 64 connections
BODY_SECONDS: Final = 30.0  # for the whole of such a body
USE_CALL: Final = "use the HTTP call (`http()` in the SDK), which shows larger ones"


async def show_tunnel(to: Destination) -> Shown:
    """What a person sees of a tunnel: its content is hidden."""
    return Shown(describe_right(Right("http", to)))


async def show_request(
    client: trio.SocketStream, request: RequestHead, body: Body, to: Destination, target: str
) -> Shown:
    """What a person sees of a request. Its body is received for that; :meth:`Body.receive` gives it again.

    Raises ``BadRequest`` for a body in chunks, ``TooLarge`` for a longer one than :data:`MAX_BODY`, and ``Timeout``.
    """
    if body.length is None:
        raise BadRequest(
            f"a person must approve {to}, and isn't shown a body in chunks: send its length, or {USE_CALL}"
        )
    if body.length > MAX_BODY:
        raise TooLarge(f"a person must approve {to}, and is shown a body of at most {MAX_BODY >> 10} KiB: {USE_CALL}")
    if request.expects_continue and body.length:
        await client.send_all(CONTINUE)
    with trio.move_on_after(BODY_SECONDS) as scope:
        content = await body.receive_whole()
    if scope.cancelled_caught:
        raise Timeout(f"{to}: no whole body within {BODY_SECONDS:g} s")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
    text = describe_http(to, headers, content, target.partition("?")[2])
    return Shown(text, repr((target, request.headers, content)).encode())
