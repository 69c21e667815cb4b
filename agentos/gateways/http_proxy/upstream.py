"""Connections through the HTTP proxy of a firm, ``[http] upstream_proxy``, by CONNECT."""

from ipaddress import ip_address

import h11
import trio

from agentos.services.http.destination import Destination, is_address
from agentos.services.http.egress import Egress, JudgeAddress
from agentos_sdk.errors import Timeout, Unavailable

CONNECT_SECONDS = 30.0  # until the proxy has answered


async def connect_through_proxy(
    egress: Egress, owner: int, proxy: tuple[str, int], destination: Destination, judge: JudgeAddress
) -> trio.SocketStream:
    """A connection to the destination. The proxy resolves names and judges their addresses.

    Raises ``PermissionDenied``, ``Unavailable``, ``Timeout``.
    """
    if is_address(destination.host):
        judge(ip_address(destination.host), destination.port)
    stream = await egress.connect(owner, *proxy, lambda address, port: None)  # the operator chose that address
    try:
        with trio.fail_after(CONNECT_SECONDS):
            status = await ask_proxy(stream, destination.authority)
        if not 200 <= status < 300:
            raise Unavailable(f"the upstream proxy refuses {destination.authority}: status {status}")
    except trio.TooSlowError:
        stream.socket.close()
        raise Timeout(f"the upstream proxy didn't answer within {CONNECT_SECONDS:g} s") from None
    except BaseException:
        stream.socket.close()
        raise
    return stream


async def ask_proxy(stream: trio.SocketStream, authority: str) -> int:
    """The status with which the proxy answers CONNECT."""
    connection = h11.Connection(h11.CLIENT)
    request = connection.send(h11.Request(method="CONNECT", target=authority, headers=[("Host", authority)]))
    assert request is not None
    try:
        await stream.send_all(request + (connection.send(h11.EndOfMessage()) or b""))
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(1)))  # what follows the head is the tunnel's
    except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
        raise Unavailable(f"the upstream proxy's answer isn't HTTP: {error}") from None
    if not isinstance(event, h11.Response):
        raise Unavailable("the upstream proxy closed the connection")
    return event.status_code
