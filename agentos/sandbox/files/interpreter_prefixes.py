"""Check interpreter prefixes: a jail may show an interpreter's directory only if it has nothing else in it."""

import os
import pwd
from collections.abc import Iterator

from agentos.sandbox.errors import SandboxError
from agentos.sandbox.policy import Interpreter

from .root_files import FORBIDDEN_PREFIXES

SYSTEM_PREFIXES = ("/usr", "/usr/local")  # prefixes that every jail has anyway
REMEDY = "install AgentOS into an environment in a directory of its own: python3 -m venv ~/agentos-venv"


def describe_exposure(prefix: str) -> str | None:
    """Return what else a jail would show with this prefix; None if nothing. Blocks: it reads passwd."""
    if prefix in SYSTEM_PREFIXES:
        return None
    for path in {prefix, os.path.realpath(prefix)}:
        if path in FORBIDDEN_PREFIXES:
            return f"a jail would show {path}, with everything in it"
        for home in _home_directories():
            if is_within(home, path) or path == os.path.join(home, ".local"):
                return f"a jail would show {path}, which contains a user's home directory"
    return None


def explain_unfit(python: Interpreter) -> str | None:
    """Return why no jail may show the kernel's own interpreter; the remedy is :data:`REMEDY`. Blocks."""
    found = describe_exposure(python.prefix) or describe_exposure(python.base_prefix)
    return f"for {python.executable} {found}" if found is not None else None


def validate_interpreter(python: Interpreter) -> None:
    """:class:`SandboxError` if the interpreter is unfit."""
    if (why := explain_unfit(python)) is not None:
        raise SandboxError(f"{why}: {REMEDY}")


def is_within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _home_directories() -> Iterator[str]:
    for home in {one.pw_dir for one in pwd.getpwall()}:
        if os.path.isabs(home):
            yield from {home, os.path.realpath(home)}
