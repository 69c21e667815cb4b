"""Whether a text of a vendor's shows a part of the API key: as it is, in pieces, or in an encoding. No I/O.

An agent sees that a text was withheld, and can choose words that vendors repeat, such as a model's name. If a few
characters were enough, an agent could find a key by single characters. So a piece counts from :data:`KEY_PIECE`
characters on, and the prefix that all keys of a vendor share isn't counted.
"""

import base64
import html
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

KEY_PIECE: Final = 12  # characters of a key: too many to guess, also of hexadecimal digits
BASE64_PIECE: Final = 16  # characters of base64, which hold at least 11 of the key
# How keys of many vendors begin: sk-proj-, sk-ant-api03-, AIzaSy; of a JWT all but its signature.
PUBLIC: Final = re.compile(r"eyJ[\w-]+\.(?:[\w-]+\.)?|AIza(?:Sy)?|(?:[A-Za-z]{1,7}[0-9]{0,2}[-_]){1,3}")
UNICODE_ESCAPE: Final = re.compile(r"\\(?:u00|x)([0-9a-fA-F]{2})")
BETWEEN: Final = re.compile(r"<[^>]*>|[^!-~]")  # markup, white space and invisible characters


def shows_key(text: str, key: str) -> bool:
    """Whether a piece of ``key``, in any case, or a short one is in ``text``. Slow for more than some KiB."""
    secret = secret_part(key)
    is_long = len(secret) >= KEY_PIECE
    pieces = [*_pieces(secret.lower(), KEY_PIECE)] if is_long else [key.lower()]
    if any(piece in shown.lower() for shown in _readings(text) for piece in pieces):
        return True
    return is_long and any(piece in shown for shown in _encoded(text) for piece in _encodings(secret))


def secret_part(key: str) -> str:
    """The key without the prefix that all keys of its vendor share."""
    begin = PUBLIC.match(key)
    return key[begin.end() :] if begin is not None else key


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
    for at in range(len(text) - size + 1):
        yield text[at : at + size]
