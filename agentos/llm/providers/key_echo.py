"""Whether a text of a vendor's shows a part of the API key: as it is, in pieces, or in an encoding. No I/O."""

import base64
import html
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

KEY_PIECE: Final = 8  # characters of a key that reveal too much of it
BASE64_PIECE: Final = 10  # characters of base64, which hold at least 7 of the key
UNICODE_ESCAPE: Final = re.compile(r"\\(?:u00|x)([0-9a-fA-F]{2})")
BETWEEN: Final = re.compile(r"<[^>]*>|[^!-~]")  # markup, white space and invisible characters


def shows_key(text: str, key: str) -> bool:
    """Whether :data:`KEY_PIECE` characters of ``key``, in any case, are in ``text``. Slow for more than some KiB."""
    if any(piece in shown.lower() for shown in _readings(text) for piece in _pieces(key.lower(), KEY_PIECE)):
        return True
    return len(key) >= KEY_PIECE and any(piece in shown for shown in _encoded(text) for piece in _encodings(key))


def _readings(text: str) -> Iterator[str]:
    """The text, and without what may be written between the characters or in their place."""
    yield text
    plain = UNICODE_ESCAPE.sub(lambda found: chr(int(found[1], 16)), html.unescape(unquote(unquote(text))))
    yield plain
    yield BETWEEN.sub("", plain)


def _encoded(text: str) -> Iterator[str]:
    """The text as base64 of one alphabet, and in lower case as hexadecimal digits."""
    joined = BETWEEN.sub("", unquote(text)).replace("-", "+").replace("_", "/")
    yield joined
    yield joined.lower()


def _encodings(key: str) -> Iterator[str]:
    """Pieces of the key in base64, wherever it begins in what was encoded, and in hexadecimal digits."""
    for before in range(3):
        whole = base64.b64encode(bytes(before) + key.encode()).decode().rstrip("=")
        yield from _pieces(whole[before + 1 if before else 0 : -1], BASE64_PIECE)
    yield from _pieces(key.encode().hex(), 2 * KEY_PIECE)


def _pieces(text: str, size: int) -> Iterator[str]:
    for at in range(max(1, len(text) - size + 1)):
        yield text[at : at + size]
