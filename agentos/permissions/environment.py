"""The environment of a command: what bash reads in it as code or as other rules, and what makes it another command."""

import re
from collections.abc import Iterable, Mapping, Sequence

from .variables import dangerous

READ_BY_BASH = re.compile(
    r"BASH_.*|ENV|SHELLOPTS|BASHOPTS|PS4|CDPATH|GLOBIGNORE|EXECIGNORE|POSIXLY_CORRECT|IFS|.*%%|.*\(\)", re.DOTALL
)
"""Files to run first, exported functions, options, prompts with commands in them, other rules for what words mean."""

LOCALE = re.compile(r"LANG|LANGUAGE|LC_.*")
PLAIN_LOCALE = re.compile(r"|C|POSIX|.*\.(utf8|UTF-8)(@.*)?", re.IGNORECASE)


def read_by_bash(names: Iterable[str]) -> Sequence[str]:
    """Those that no command is given: nobody could judge beforehand what they do."""
    return [name for name in names if READ_BY_BASH.fullmatch(name)]


def changes_what_runs(variables: Mapping[str, str]) -> Sequence[str]:
    """The names of those that may make another command of the one that is read, sorted."""
    return sorted(name for name, value in variables.items() if dangerous(name) or _odd(name, value))


def _odd(name: str, value: str) -> bool:
    """A character set in which a letter may have a backslash in it: bash reads another line than we do."""
    return LOCALE.fullmatch(name) is not None and PLAIN_LOCALE.fullmatch(value) is None
