"""Environment variables: those that are plain data for any program, and those that bash reads as code."""

import re
from collections.abc import Iterable, Mapping, Sequence

PLAIN = frozenset({"TZ", "TERM", "NO_COLOR", "COLUMNS", "CI", "PYTHONUNBUFFERED", "DEBIAN_FRONTEND"})
LOCALE = re.compile(r"LANG|LC_[A-Z]+")
VALUE = re.compile(r"[A-Za-z0-9_.:,/@+-]*")  # debconf evaluates DEBIAN_FRONTEND as Perl, so its value is bounded too
LOCALE_VALUE = re.compile(r"|C|POSIX|[A-Za-z_]+\.(utf8|UTF-8)(@[a-z]+)?")  # in others half a letter may be a backslash
READ_BY_BASH = re.compile(
    r"BASH_.*|ENV|SHELLOPTS|BASHOPTS|PS4|CDPATH|GLOBIGNORE|EXECIGNORE|POSIXLY_CORRECT|IFS|.*%%|.*\(\)", re.DOTALL
)
"""Files that bash runs first, exported functions, options, prompts with commands, other rules for words."""


def is_plain(name: str, value: str) -> bool:
    """Whether a variable is known to change neither what runs nor how a text is read."""
    if LOCALE.fullmatch(name):
        return LOCALE_VALUE.fullmatch(value) is not None
    return name in PLAIN and VALUE.fullmatch(value) is not None


def names_not_plain(variables: Mapping[str, str]) -> Sequence[str]:
    """The names of all others, sorted."""
    return sorted(name for name, value in variables.items() if not is_plain(name, value))


def names_read_by_bash(names: Iterable[str]) -> Sequence[str]:
    """The names that no command is given, as bash runs or changes something by them before its line."""
    return [name for name in names if READ_BY_BASH.fullmatch(name)]
