"""Which directories a Python needs to be seen: told from the files beside it, without running it."""

import os
from pathlib import Path

from agentos.sandbox.policy import Interpreter


class NoInterpreter(ValueError):
    """This is no Python that can be shown in a jail; the text says why."""


def interpreter(executable: str) -> Interpreter:
    """The interpreter at a path. Blocks: it reads links and a file.

    A virtual environment is known by its ``pyvenv.cfg`` (PEP 405), whose ``home`` is where the base interpreter lies.
    """
    with open(executable, "rb") as file:
        if file.read(2) == b"#!":
            raise NoInterpreter(f"{executable} is a script that starts an interpreter: name the interpreter itself")
    prefix = Path(executable).parent.parent
    home = _home(prefix / "pyvenv.cfg")
    base = Path(home).resolve().parent if home is not None else Path(os.path.realpath(executable)).parent.parent
    if home is None:
        prefix = base
    return Interpreter(executable, str(prefix), str(base))


def _home(config: Path) -> str | None:
    try:
        lines = config.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NoInterpreter(f"{config} can't be read: {error}") from None
    values = {name.strip().lower(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    if "home" not in values:
        raise NoInterpreter(f"{config} doesn't say home = ..., where its base interpreter is")
    return values["home"]
