"""DNS server inside a jail: answers the names that a rule could allow with addresses of its own.

It asks no other server, so a name that an agent looks up leaves the host neither before nor after a decision.
"""

import socket
from collections.abc import Callable
from time import perf_counter

import trio
from attrs import define

from agentos.http.accept import accept

from .dns_message import Question, parse_question
from .name_table import NameTable

TTL = 60  # seconds for which programs may keep an answer
MAX_MESSAGE = 4096  # bytes; a question about the longest name has 271
IDLE_SECONDS = 10.0  # a TCP connection without a whole question is closed
MAX_CONNECTIONS = 16  # TCP; more wait until one has ended
TURN_SECONDS = 0.001  # in which datagrams are answered before other tasks of the kernel run: some names take 1 ms


@define(eq=False)
class DNSStub:
    """Answers over UDP and TCP. ``could_allow``: whether any rule could allow a connection to that host name."""

    names: NameTable
    could_allow: Callable[[str], bool]

    def answer(self, message: bytes) -> bytes | None:
        """The reply to a message; None if it deserves none."""
        question = parse_question(message)
        if not isinstance(question, Question):
            return question
        if not self.could_allow(question.name):
            return question.deny()
        return question.answer(self.names.address_of(question.name), TTL)

    async def serve(self, udp: socket.socket, tcp: socket.socket) -> None:
        """Serve both sockets until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_datagrams, udp)
            nursery.start_soon(self._serve_connections, tcp)

    async def _serve_datagrams(self, udp: socket.socket) -> None:
        udp.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(udp)
            turn_ends = perf_counter() + TURN_SECONDS
            while perf_counter() < turn_ends:
                try:
                    message, client = udp.recvfrom(MAX_MESSAGE)
                    if (reply := self.answer(message)) is not None:
                        udp.sendto(reply, client)
                except BlockingIOError:
                    break  # nothing to read, or the client's buffer is full: it asks again
                except OSError:
                    continue  # the client is gone

    async def _serve_connections(self, tcp: socket.socket) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(tcp))
        slots = trio.Semaphore(MAX_CONNECTIONS)
        async with trio.open_nursery() as nursery:
            while True:
                await slots.acquire()
                stream = None
                while stream is None:
                    stream = await accept(listener)
                nursery.start_soon(self._serve_connection, stream, slots)

    async def _serve_connection(self, stream: trio.SocketStream, slots: trio.Semaphore) -> None:
        """Answer the questions of one client in turn; each has its length in two bytes before it (RFC 1035, 4.2.2)."""
        try:
            while True:
                with trio.fail_after(IDLE_SECONDS):
                    length = int.from_bytes(await receive_exactly(stream, 2))
                    reply = self.answer(await receive_exactly(stream, min(length, MAX_MESSAGE)))
                    if reply is None or length > MAX_MESSAGE:
                        return
                    await stream.send_all(len(reply).to_bytes(2) + reply)
        except (trio.BrokenResourceError, trio.TooSlowError, EOFError):
            pass
        finally:
            slots.release()
            stream.socket.close()


async def receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    """That many bytes; ``EOFError`` if the peer has sent fewer."""
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
