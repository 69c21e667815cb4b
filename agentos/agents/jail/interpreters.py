"""Python interpreters: finds the directories an interpreter needs in a jail from its files, without running it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agentos.sandbox.files import interpreter_prefixes
from agentos.sandbox.files.interpreter_prefixes import is_within
from agentos.sandbox.files.root_files import SYSTEM_PATHS
from agentos.sandbox.policy import Interpreter
from agentos.services.files.foreign_files import read_regular

_INSTEAD = "install it in a directory of its own (pyenv, uv and conda do), or name the system's"


MAX_CONFIG = 64 << 10  # bytes of pyvenv.cfg that are read


class NoInterpreter(ValueError):
    """Not a Python interpreter that a jail can have; the text says why."""


def interpreter(executable: str) -> Interpreter:
    """The interpreter at a path. Blocks: it reads symlinks, a file and the user database.

    A virtual environment is recognized by its ``pyvenv.cfg`` (PEP 405), where ``home`` is the directory of the base
    interpreter, often of a symlink to it. The jail shows the symlink's target and never the directory of the symlink.
    """
    if not os.path.isabs(executable):  # a file named it, which was read before it was there
        found = shutil.which(executable) if "/" not in executable else None
        if found is None:
            raise NoInterpreter(f"{executable}: expected an absolute path")
        executable = found
    if read_regular(executable, 2) == b"#!":
        raise NoInterpreter(f"{executable} is a script that starts an interpreter: name the interpreter itself")
    environment = Path(executable).parent.parent
    home = _home(environment / "pyvenv.cfg")
    real = os.path.realpath(executable if home is None else _in(home, os.path.basename(executable)))
    base = str(Path(real).parent.parent)
    _check_installation(base, real)
    if home is None:
        return Interpreter(executable if is_within(executable, base) else real, base, base)
    prefix = str(environment)
    _check_nothing_else(prefix, executable)
    for hop in _hops(executable):
        if not any(is_within(hop, place) for place in (prefix, base, *SYSTEM_PATHS)):
            raise NoInterpreter(
                f"{executable} leads to {base} by way of {hop}, which no jail has: "
                f"make the environment anew with {real} -m venv"
            )
    return Interpreter(executable, prefix, base)


def _home(config: Path) -> str | None:
    try:
        lines = read_regular(config, MAX_CONFIG).decode().splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NoInterpreter(f"{config} can't be read: {error}") from None
    values = {name.strip().lower(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    if "home" not in values:
        raise NoInterpreter(f"{config} doesn't say home = ..., where its base interpreter is")
    return values["home"]


def _in(home: str, name: str) -> str:
    """The base interpreter of an environment with an executable of this name."""
    for path in (os.path.join(home, name), os.path.join(home, "python3"), os.path.join(home, "python")):
        if os.path.isfile(path):
            return path
    raise NoInterpreter(f"there is no {name}, python3 or python in {home}, which pyvenv.cfg names as home")


def _check_installation(prefix: str, executable: str) -> None:
    """Check that a directory is a Python installation of its own, not one with a Python in bin beside other things."""
    if prefix in interpreter_prefixes.SYSTEM_PREFIXES:
        return
    _check_nothing_else(prefix, executable)
    if not any(library.is_file() for way in ("lib", "lib64") for library in Path(prefix, way).glob("py*/os.py")):
        raise NoInterpreter(f"{executable} has no library (lib/python3.*/os.py) in {prefix}: {_INSTEAD}")


def _check_nothing_else(prefix: str, executable: str) -> None:
    if (why := interpreter_prefixes.describe_exposure(prefix)) is not None:
        raise NoInterpreter(f"for {executable} {why}: {_INSTEAD}")


def _hops(path: str) -> Iterator[str]:
    """A path, then each path that its symlinks lead to."""
    for _ in range(40):  # Linux follows at most 40 symlinks
        yield path
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
