"""DNS client: asks one server for the addresses of a name, over UDP, and over TCP if the answer is cut off (RFC 1035).

MESSAGE   id (2 bytes), flags (2), four counts (2 each): questions, answers, two others
QUESTION  name, type (2), class (2); a name is labels with their length in front, ended by 0
ANSWER    name, type (2), class (2), seconds to live (4), length (2), data
"""

import secrets
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from itertools import zip_longest

import trio
from attrs import define
from msgspec import Struct

from .addresses import Address

A, CNAME, AAAA, IN = 1, 5, 28, 1
IS_ANSWER, IS_CUT_OFF, CODE = 0x8000, 0x0200, 0xF
NO_SUCH_NAME = 3
ATTEMPT_SECONDS = 1.5  # until a question is sent again
MAX_DATAGRAM = 4096  # bytes
MAX_HOPS = 127  # labels and pointers of a name
MAX_ALL_HOPS = 4096  # of all names of a message, which are decoded without a pause
HEADER = struct.Struct("!HHHHHH")
RECORD = struct.Struct("!HHIH")


class DnsError(OSError):
    """The server didn't answer the question; the text says why."""


class Answer(Struct, frozen=True):
    addresses: Sequence[Address]
    cut_off: bool


async def ask_server(host: str, server: tuple[str, int]) -> Sequence[Address]:
    """The addresses of a name, IPv6 and IPv4 in turn; asks until cancelled. Raises ``OSError``."""
    found: dict[int, Sequence[Address]] = {}
    errors: list[OSError] = []

    async def ask(kind: int) -> None:
        try:
            found[kind] = await _ask(host, kind, server)
        except OSError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for kind in (A, AAAA):
            nursery.start_soon(ask, kind)
    pairs = zip_longest(found.get(AAAA, ()), found.get(A, ()))
    addresses = [address for pair in pairs for address in pair if address is not None]
    if not addresses:
        raise errors[0] if errors else DnsError("it has no address")
    return addresses


async def _ask(host: str, kind: int, server: tuple[str, int]) -> Sequence[Address]:
    number = secrets.randbits(16)
    question = encode_question(number, host, kind)
    family = trio.socket.AF_INET6 if ":" in server[0] else trio.socket.AF_INET
    while True:  # each attempt from another port: an answer is harder to forge
        with trio.move_on_after(ATTEMPT_SECONDS), trio.socket.socket(family, trio.socket.SOCK_DGRAM) as sock:
            await sock.connect(server)
            await sock.send(question)
            while (answer := decode_answer(await sock.recv(MAX_DATAGRAM), question)) is None:
                pass
            return (await _ask_by_tcp(question, server)).addresses if answer.cut_off else answer.addresses


async def _ask_by_tcp(question: bytes, server: tuple[str, int]) -> Answer:
    async with await trio.open_tcp_stream(*server) as stream:
        await stream.send_all(struct.pack("!H", len(question)) + question)
        received = bytearray()
        while len(received) < 2 or len(received) < 2 + int.from_bytes(received[:2], "big"):
            chunk = await stream.receive_some(MAX_DATAGRAM)
            if not chunk:
                raise DnsError("the DNS server cut its answer off")
            received += chunk
    answer = decode_answer(bytes(received[2:]), question)
    if answer is None:
        raise DnsError("the DNS server answered another question")
    return answer


def encode_question(number: int, host: str, kind: int) -> bytes:
    """A message that asks for the records of this type."""
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in host.split("."))
    return HEADER.pack(number, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, IN)


def decode_answer(message: bytes, question: bytes) -> Answer | None:
    """The answer in a message, or ``None`` if it isn't an answer to this question. Raises :class:`DnsError`."""
    if len(message) < len(question) or message[:2] != question[:2]:
        return None
    asked = message[HEADER.size : len(question)].lower()
    _, flags, questions, count, _, _ = HEADER.unpack_from(message)
    if not flags & IS_ANSWER or questions != 1 or asked != question[HEADER.size :].lower():
        return None
    if flags & CODE == NO_SUCH_NAME:
        raise DnsError("there is no such name")
    if flags & CODE:
        raise DnsError(f"the DNS server failed with code {flags & CODE}")
    if flags & IS_CUT_OFF:
        return Answer((), True)
    try:
        return Answer(_decode_records(message, len(question), count, asked), False)
    except (struct.error, IndexError, ValueError):
        raise DnsError("the DNS server's answer is malformed") from None


def _decode_records(message: bytes, at: int, count: int, asked: bytes) -> Sequence[Address]:
    """The addresses of the name that was asked about, and of the names that it is an alias of."""
    kind = int.from_bytes(asked[-4:-2], "big")
    names = _Names(message)
    name, _ = _Names(asked).decode(0)
    aliases: dict[bytes, bytes] = {}
    addresses: dict[bytes, list[Address]] = {}
    for _ in range(count):
        owner, at = names.decode(at)
        found, class_, _, length = RECORD.unpack_from(message, at)
        at += RECORD.size
        data = message[at : at + length]
        if class_ == IN and found == CNAME:
            aliases[owner], _ = names.decode(at)
        elif class_ == IN and found == kind:
            addresses.setdefault(owner, []).append(IPv4Address(data) if kind == A else IPv6Address(data))
        at += length
    while name not in addresses and name in aliases:
        name = aliases.pop(name)  # each alias once: they may form a ring
    return addresses.get(name, ())


@define
class _Names:
    """Decodes the names of one message. Raises ``ValueError`` for too long ones, and for too many labels in all."""

    _message: bytes
    _hops: int = 0

    def decode(self, at: int) -> tuple[bytes, int]:
        """A name in lower case, and where what follows it begins."""
        message, labels = self._message, list[bytes]()
        end, limit = 0, len(message)
        most = min(self._hops + MAX_HOPS, MAX_ALL_HOPS)
        while (length := message[at]) != 0:
            self._hops += 1
            if self._hops > most:
                raise ValueError("a name that is too long, or too many names")
            if length >= 0xC0:  # the rest stands further in front
                end = end or at + 2
                at = int.from_bytes(message[at : at + 2], "big") & 0x3FFF
                if at >= limit:
                    raise ValueError("a pointer that doesn't lead back")
                limit = at
            else:
                labels.append(message[at + 1 : at + 1 + length].lower())
                at += 1 + length
        return b".".join(labels), end or at + 1
