"""Text without halves of surrogate pairs, which JSON can escape (``\\ud83d``) and UTF-8 can't encode."""

from __future__ import annotations

import re
from typing import Any

ESCAPES = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)  # of JSON: a backslash or a whole pair; else half of one


def join_surrogates(text: str) -> str:
    """The text with both halves of a pair joined to their character, and U+FFFD for a half that is alone."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def join_surrogates_in(value: Any) -> Any:
    """A JSON value with :func:`join_surrogates` in all of its texts and names. Recursive: limit its depth before."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict):
        return {join_surrogates(name): join_surrogates_in(each) for name, each in value.items()}
    if isinstance(value, list):
        return [join_surrogates_in(each) for each in value]
    return value


def ends_in_half(text: str) -> bool:
    """Whether the text ends with the first half of a pair: the second may follow."""
    return "\ud800" <= text[-1:] <= "\udbff"


def replace_half_escapes(json: bytes) -> bytes:
    """JSON with the escape of U+FFFD for each half of a surrogate pair that is alone (``\\ud83d``)."""
    if b"\\ud" not in json and b"\\uD" not in json:
        return json
    return ESCAPES.sub(lambda found: found[1] or b"\\ufffd", json)
