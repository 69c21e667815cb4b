"""DNS messages, as far as a resolver inside a jail needs them: one question about a host name, and its answer.

RFC 1035 section 4.1: the header has 12 bytes (ID, flags, and the numbers of questions, answers, authorities and
additional records); a question is a name in labels, a type and a class.
"""

import struct
from ipaddress import IPv4Address

from msgspec import Struct

HEADER = struct.Struct("!HHHHHH")
RESPONSE, AUTHORITATIVE, RECURSION_DESIRED, RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0100, 0x0080
OPCODE = 0x7800
NO_ERROR, FORMAT_ERROR, NO_SUCH_NAME, NOT_IMPLEMENTED = 0, 1, 3, 4
A, INTERNET = 1, 1  # type and class
MAX_NAME = 255  # bytes, with the lengths of its labels
POINTER_TO_QUESTION = b"\xc0\x0c"


class Question(Struct, frozen=True):
    """A question about ``name``, which is in lower case; ``raw`` are its bytes. ``kind`` is the record's type."""

    id: int
    flags: int
    name: str
    kind: int
    raw: bytes

    def answer(self, address: IPv4Address, seconds: int) -> bytes:
        """The answer that the name exists. It has the address, to be kept for that time, only if an A was asked for."""
        if self.kind != A:
            return self._reply(NO_ERROR)
        record = POINTER_TO_QUESTION + struct.pack("!HHIH", A, INTERNET, seconds, 4) + address.packed
        return self._reply(NO_ERROR, record)

    def deny(self) -> bytes:
        """The answer that there is no such name."""
        return self._reply(NO_SUCH_NAME)

    def _reply(self, code: int, record: bytes = b"") -> bytes:
        flags = RESPONSE | AUTHORITATIVE | RECURSION_AVAILABLE | (self.flags & RECURSION_DESIRED) | code
        return HEADER.pack(self.id, flags, 1, 1 if record else 0, 0, 0) + self.raw + record


def parse_question(message: bytes) -> Question | bytes | None:
    """The question in a message; else the answer that it is malformed or not served; None if it deserves none."""
    if len(message) < HEADER.size:
        return None
    number, flags, questions, answers, _, _ = HEADER.unpack_from(message)
    if flags & RESPONSE:  # answering answers could go on for ever
        return None
    if flags & OPCODE:
        return _refuse(number, flags, NOT_IMPLEMENTED)
    labels, at = [], HEADER.size
    while at < len(message) and 0 < message[at] < 64:
        labels.append(message[at + 1 : at + 1 + message[at]])
        at += 1 + message[at]
    end = at + 5
    is_whole = end <= len(message) and message[at] == 0 and end - HEADER.size - 4 <= MAX_NAME
    if not is_whole or (questions, answers) != (1, 0) or message[end - 2 : end] != INTERNET.to_bytes(2):
        return _refuse(number, flags, FORMAT_ERROR)
    # Latin-1, and a dot in a label doubled: what is no host name must not look like one.
    name = ".".join(label.replace(b".", b"..").decode("latin-1") for label in labels)
    kind = int.from_bytes(message[at + 1 : at + 3])
    return Question(number, flags, name.lower(), kind, message[HEADER.size : end])


def _refuse(number: int, flags: int, code: int) -> bytes:
    return HEADER.pack(number, RESPONSE | (flags & (OPCODE | RECURSION_DESIRED)) | code, 0, 0, 0, 0)
