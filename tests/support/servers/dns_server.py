"""A DNS server on loopback that answers what a test says, and keeps what it was asked."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address

import trio
from attrs import define, field

A, CNAME, AAAA = 1, 5, 28
Records = Sequence[str] | Callable[[], Sequence[str]]


@define
class DnsServer:
    """``records``: addresses by name, or a function that returns them anew for each question of the type A.

    A text that is no address is an alias (CNAME). ``silent`` names get no answer, ``cut_off`` names a whole answer
    over TCP alone. ``asked``: each question's name, also of packets that get no answer.
    """

    records: Mapping[str, Records] = field(factory=dict)
    silent: set[str] = field(factory=set)
    cut_off: set[str] = field(factory=set)
    asked: list[str] = field(factory=list)
    address: tuple[str, int] = ("", 0)

    def answer(self, question: bytes, *, tcp: bool) -> bytes | None:
        number, name, kind, end = *struct.unpack("!H", question[:2]), *_read_question(question)
        self.asked.append(name)
        if name in self.silent:
            return None
        given = self.records.get(name)
        flags, records = (0x8183, []) if given is None else (0x8180, list(self._records(name, given, kind)))
        if name in self.cut_off and not tcp:
            flags, records = flags | 0x0200, []
        return struct.pack("!HHHHHH", number, flags, 1, len(records), 0, 0) + question[12:end] + b"".join(records)

    def _records(self, name: str, given: Records, kind: int) -> list[bytes]:
        found = []
        for text in given() if callable(given) and kind == A else () if callable(given) else given:
            if not text[-1].isdigit() and ":" not in text:
                found.append(_record(name, CNAME, _name(text)))
                following = self.records.get(text, ())
                found += self._records(text, following, kind)
            elif ip_address(text).version == (4 if kind == A else 6):
                found.append(_record(name, kind, ip_address(text).packed))
        return found


def _read_question(message: bytes) -> tuple[str, int, int]:
    labels, at = [], 12
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode())
        at += 1 + message[at]
    return ".".join(labels), int.from_bytes(message[at + 1 : at + 3], "big"), at + 5


def _name(text: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in text.split(".")) + b"\0"


def _record(name: str, kind: int, data: bytes) -> bytes:
    return _name(name) + struct.pack("!HHIH", kind, 1, 0, len(data)) + data


@asynccontextmanager
async def serve_dns(server: DnsServer, host: str = "127.0.0.1") -> AsyncIterator[DnsServer]:
    """Serve on a free port of this host, over UDP and TCP."""
    listener, udp = await _listen(host)
    server.address = listener.socket.getsockname()[:2]
    with udp:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_udp, server, udp)
            nursery.start_soon(trio.serve_listeners, _serve_tcp(server), [listener])
            yield server
            nursery.cancel_scope.cancel()


async def _listen(host: str) -> tuple[trio.SocketListener, trio.socket.SocketType]:
    """Sockets for both on one port, which is free for TCP when it is chosen; another process may have it for UDP."""
    while True:
        [listener] = await trio.open_tcp_listeners(0, host=host)
        udp = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        try:
            await udp.bind(listener.socket.getsockname()[:2])
        except OSError:
            udp.close()
            await listener.aclose()
        else:
            return listener, udp


async def _serve_udp(server: DnsServer, udp: trio.socket.SocketType) -> None:
    while True:
        question, sender = await udp.recvfrom(4096)
        if (answer := server.answer(question, tcp=False)) is not None:
            await udp.sendto(answer, sender)


def _serve_tcp(server: DnsServer) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            received = b""
            while len(received) < 2 or len(received) < 2 + int.from_bytes(received[:2], "big"):
                if not (chunk := await stream.receive_some(4096)):
                    return
                received += chunk
            if (answer := server.answer(received[2:], tcp=True)) is not None:
                await stream.send_all(struct.pack("!H", len(answer)) + answer)

    return serve
