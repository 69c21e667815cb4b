"""The pieces of a text for bash, as expressions, and the escapes of ``$'...'``. Each takes linear time."""

import re

PLAIN = re.compile(r"""[^\s\\'"$`;&|<>(){*?\[~#]+""")  # of an unquoted word
QUOTED, BRACED, BODY = re.compile(r'[^"\\$`]+'), re.compile(r"""[^}"'\\$`]+"""), re.compile(r"[^\\$`]+")
NAME = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})", re.ASCII)
SPECIAL = re.compile(r"\$[0-9@*#?!$-]")
DOLLAR = re.compile(r"""\$(?=[ \t\n"|/.,:;%=+&<>)\]}^~]|\\(?!\n)|\Z)""")  # stands for itself
ARITHMETIC = re.compile(r"\$?\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)")
EMPTY_LIST = re.compile(r"\([ \t]*\)[ \t\n]*")
SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|\n]")
REDIRECT = re.compile(r"&>>|&>|<<<|<<-|<<|<&|<>|<\(|<|>>|>&|>\||>\(|>")
TO_DESCRIPTOR = re.compile(r">&[0-9-](?=[ \t\n;|&]|\Z)")
DELIMITER = re.compile(
    r"""[ \t]*(?:'([^'\n]+)'|"([^"\\$`\n]+)"|\\(\w+)|([^\s'"\\$`;|&<>()]+))(?=[ \t\n;|&<>)]|\Z)""", re.ASCII
)
CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
TICKS = ("`", "\\`")
BACKQUOTE = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL)
ANSI_C = re.compile(r"'((?:[^'\\]|\\.)*)'?", re.DOTALL)
ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


def unescape(inside: str) -> str | None:
    """The value of what stands in ``$'...'``, ``None`` where that depends on more than the text."""
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
