"""The forms in which a recording may have a text."""

import json
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Iterator
from urllib.parse import quote, quote_plus


def escape(text: str, levels: int, *, ascii_only: bool = False) -> str:
    """The text as it stands in a text of JSON, in one within it and so on."""
    for _ in range(levels):
        text = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    return text


def list_plain(text: str) -> Iterator[bytes]:
    for levels in range(5):
        for ascii_only in (False, True):
            yield escape(text, levels, ascii_only=ascii_only).encode()
    yield quote(text, safe="").encode()
    yield quote_plus(text).lower().encode()


def list_encoded(text: str) -> Iterator[bytes]:
    """The text in base64 that begins anywhere: whole values, of which a search finds what :func:`list_parts` has."""
    for before in range(3):
        for levels in range(3):
            data = b"<" * before + escape(text, levels).encode() + b"and more"
            yield b64encode(data)
            yield urlsafe_b64encode(data)
            yield b64encode(b"again" + b64encode(data))
            yield encodebytes(b"." * 50 + data)
            yield json.dumps(encodebytes(b"." * 50 + data).decode()).encode()


def list_parts(text: str) -> Iterator[bytes]:
    """What stands in a file that has the text, whatever is beside it."""
    yield from list_plain(text)
    for levels in range(3):
        data = escape(text, levels).encode()
        for before in range(3):
            part = b64encode(b"." * before + data)[-(-8 * before // 6) : 8 * (before + len(data)) // 6]
            yield from (part, part.replace(b"+", b"-").replace(b"/", b"_"))
