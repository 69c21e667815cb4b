"""The pieces of a text for bash, as expressions. Each takes linear time."""

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
