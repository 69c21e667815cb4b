"""ClientHellos: OpenSSL's own, and built field by field."""

import contextlib
import ssl
from collections.abc import Sequence


def real_hello(host: str | None, *, latest: bool = True) -> bytes:
    """The first flight of OpenSSL's client, in one record."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if not latest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def counted(data: bytes, length_bytes: int = 2) -> bytes:
    return len(data).to_bytes(length_bytes) + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2) + counted(data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, counted(b"".join(bytes([kind]) + counted(name) for name in names)))


def hello(*extensions: bytes) -> bytes:
    """A ClientHello as a handshake message."""
    body = b"\3\3" + b"r" * 32 + counted(b"", 1) + counted(b"\x13\1") + counted(b"\0", 1)
    body += counted(b"".join(extensions)) if extensions else b""
    return b"\1" + counted(body, 3)


def records(message: bytes, sizes: Sequence[int] = ()) -> bytes:
    """The message in TLS records of these sizes; what is left in further ones of 16 KiB."""
    out = b""
    for size in (*sizes, *[1 << 14] * (len(message) // (1 << 14) + 1)):
        part, message = message[:size], message[size:]
        out += b"\x16\3\1" + counted(part) if part else b""
    return out
