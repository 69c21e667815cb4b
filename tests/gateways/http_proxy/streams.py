"""Connections over loopback."""

import trio


async def connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Both ends of a TCP connection."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = await trio.open_tcp_stream(*listener.socket.getsockname())
        return await listener.accept(), theirs


async def receive_all(stream: trio.SocketStream) -> bytes:
    """Everything up to the end of the stream."""
    received = bytearray()
    while data := await stream.receive_some():
        received += data
    return bytes(received)
