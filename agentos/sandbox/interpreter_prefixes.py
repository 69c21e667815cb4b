"""Check interpreter prefixes: a jail may show an interpreter's directory only if it has nothing else in it."""

import os
import pwd
from collections.abc import Iterator

from .errors import SandboxError
from .plan import TOO_MUCH
from .policy import Interpreter

SYSTEM = ("/usr", "/usr/local")  # prefixes that every jail has anyway
REMEDY = "install AgentOS into an environment in a directory of its own: python3 -m venv ~/agentos-venv"


def objection(prefix: str) -> str | None:
    """Return what else a jail would show with this prefix; None if nothing. Blocks: it reads passwd."""
    if prefix in SYSTEM:
        return None
    for path in {prefix, os.path.realpath(prefix)}:
        if path in TOO_MUCH:
            return f"a jail would show {path}, with all that is there"
        for home in _homes():
            if within(home, path) or path == os.path.join(home, ".local"):
                return f"a jail would show {path}, with what people have there"
    return None


def unfit(python: Interpreter) -> str | None:
    """Return why no jail may show the kernel's own interpreter; the remedy is :data:`REMEDY`. Blocks."""
    found = objection(python.prefix) or objection(python.base_prefix)
    return f"for {python.executable} {found}" if found is not None else None


def check(python: Interpreter) -> None:
    """:class:`SandboxError` if the interpreter is unfit."""
    if (why := unfit(python)) is not None:
        raise SandboxError(f"{why}: {REMEDY}")


def within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _homes() -> Iterator[str]:
    for home in {one.pw_dir for one in pwd.getpwall()}:
        if os.path.isabs(home):
            yield from {home, os.path.realpath(home)}
