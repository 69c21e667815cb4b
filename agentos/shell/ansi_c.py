"""What ``$'...'`` means."""

import re

ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


def unescape(inside: str) -> str | None:
    """The value of what stands between the quotes, ``None`` where that depends on more than the text."""
    known = True

    def value(found: re.Match[str]) -> str:
        nonlocal known
        letter, *numbers, octal, _ = found.groups()
        if letter:
            return LETTERS[letter]
        hexadecimal = next((number for number in numbers if number), None)
        code = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else 0
        # A NUL ends the text, a byte beyond ASCII may be half a character, \c and unknown letters are left to bash.
        known = known and 0 < code < 128
        return chr(code) if known else ""

    text = ESCAPE.sub(value, inside)
    return text if known else None
