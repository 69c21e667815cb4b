"""TLS ClientHello: reassembles it over records and returns the server name (SNI), without decrypting anything.

RFC 8446 section 5.1 (records), 4.1.2 (ClientHello), 4.1.4 (HelloRetryRequest) and 4.2 (extensions), RFC 6066 section 3
(server_name):

    record     type (1)  version (2)  length (2)  fragment
    handshake  type (1)  length (3)  body
    body       version (2)  random (32)  session id (1+n)  cipher suites (2+n)  compression (1+n)  extensions (2+n)
    extension  type (2)  data (2+n)

A message that servers could read in different ways is refused. The encrypted ClientHello extension (ECH) is ignored:
clients send random bytes in it to servers without ECH (GREASE), which look the same.
"""

from attrs import define, field

MAX_HELLO_BYTES = 16 << 10  # with the headers of its records
MAX_SECOND_BYTES = 64 << 10  # of a second ClientHello, with the early data before it
HANDSHAKE_RECORD = b"\x16\3"  # type, and major version
BEFORE_SECOND = b"\x14\x17"  # types of records between two ClientHellos: change_cipher_spec, and early data
CLIENT_HELLO, SERVER_HELLO, SERVER_NAME, HOST_NAME = 1, 2, 0, 0
# The random of a ServerHello that asks for another ClientHello.
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
RANDOM_AT = 5 + 4 + 2  # in a ServerHello's record
MAX_FRAGMENT = 1 << 14  # bytes


class NoServerName(ValueError):
    """The data isn't a ClientHello with a server name; the text says why."""


@define
class HelloReader:
    """Collects what a client sends first. ``received`` is all of it, to be passed on unchanged.

    ``is_second``: the ClientHello after a HelloRetryRequest, which other records may precede.
    """

    is_second: bool = False
    received: bytearray = field(factory=bytearray)
    _message: bytearray = field(factory=bytearray)  # the fragments of the complete records
    end: int = 0  # offset in ``received``: of the next record, at last of the one after the ClientHello

    def feed(self, data: bytes) -> str | None:
        """Add received data. Returns the server name in lower case; None if the ClientHello isn't complete yet.

        Raises :class:`NoServerName` as soon as it can't become one.
        """
        self.received += data
        while not self._is_complete() and (fragment := self._next_fragment()) is not None:
            self._message += fragment
            if self._message and self._message[0] != CLIENT_HELLO:
                raise NoServerName("the first TLS message isn't a ClientHello")
        complete = self._is_complete()
        most = MAX_SECOND_BYTES if self.is_second else MAX_HELLO_BYTES
        if self._announced_bytes() > MAX_HELLO_BYTES or (not complete and len(self.received) > most):
            raise NoServerName(f"the ClientHello has more than {MAX_HELLO_BYTES >> 10} KiB")
        return read_server_name(bytes(self._message[4:])) if complete else None

    def _next_fragment(self) -> bytes | None:
        header = bytes(self.received[self.end : self.end + 5])
        skipped = self.is_second and not self._message and header[:1] in BEFORE_SECOND
        if not skipped and not HANDSHAKE_RECORD.startswith(header[:2]):
            raise NoServerName("the data isn't TLS")
        if len(header) < 5:
            return None
        begin, length = self.end + 5, int.from_bytes(header[3:])
        if not 0 < length <= MAX_FRAGMENT:
            raise NoServerName(f"a TLS record of {length} bytes")
        if len(self.received) < begin + length:
            return None
        self.end = begin + length
        return b"" if skipped else bytes(self.received[begin : self.end])

    def _announced_bytes(self) -> int:
        return 4 + int.from_bytes(self._message[1:4]) if len(self._message) >= 4 else 0

    def _is_complete(self) -> bool:
        if not 0 < self._announced_bytes() <= len(self._message):
            return False
        if len(self._message) > self._announced_bytes():
            raise NoServerName("another message follows the ClientHello in its TLS record")
        return True


def asks_to_retry(answer: bytes) -> bool | None:
    """Whether what a server sends first is a HelloRetryRequest; None if that can't be told yet."""
    begin = answer[:1] + answer[5:6]  # the type of the record, and that of the message
    if not bytes([HANDSHAKE_RECORD[0], SERVER_HELLO]).startswith(begin):
        return False
    if len(answer) < RANDOM_AT + len(RETRY_RANDOM):
        return None
    return answer[RANDOM_AT : RANDOM_AT + len(RETRY_RANDOM)] == RETRY_RANDOM


def read_server_name(hello: bytes) -> str:
    """The server name in the body of a ClientHello, in lower case; raises :class:`NoServerName`."""
    fields = Fields(hello)
    fields.take(2 + 32)
    for length_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        fields.take_counted(length_bytes)
    if fields.at_end:
        raise NoServerName("the ClientHello has no extensions, so no server name")
    extensions = Fields(fields.take_counted(2))
    found: dict[int, bytes] = {}
    while not extensions.at_end:
        kind = int.from_bytes(extensions.take(2))
        if kind in found:
            raise NoServerName(f"the ClientHello has two extensions {kind}")
        found[kind] = extensions.take_counted(2)
    if not fields.at_end:
        raise NoServerName("the ClientHello has data after its extensions")
    if SERVER_NAME not in found:
        raise NoServerName("the ClientHello has no server name (SNI)")
    return read_name_list(found[SERVER_NAME])


def read_name_list(extension: bytes) -> str:
    """The one host name in a server_name extension."""
    outer = Fields(extension)
    names = Fields(outer.take_counted(2))
    kind, name = names.take(1)[0], names.take_counted(2)
    if kind != HOST_NAME or not names.at_end or not outer.at_end:
        raise NoServerName("the server name extension (SNI) holds something else than one host name")
    if not 0 < len(name) < 256 or not all(0x21 <= byte <= 0x7E for byte in name):
        raise NoServerName("the server name (SNI) isn't a host name in ASCII")
    return name.decode("ascii").lower()


@define
class Fields:
    """Reads a message field by field; raises :class:`NoServerName` where it ends too early."""

    _data: bytes
    _at: int = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise NoServerName("the ClientHello is malformed: a field extends beyond its end")
        self._at += size
        return self._data[self._at - size : self._at]

    def take_counted(self, length_bytes: int) -> bytes:
        """A field that begins with its length in ``length_bytes`` bytes."""
        return self.take(int.from_bytes(self.take(length_bytes)))
