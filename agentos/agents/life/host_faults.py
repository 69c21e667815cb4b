"""Host faults: what an agent's spec names and this host doesn't have, or an agent can't use.

SPAWN refuses an agent for one. A configuration file with one is right: ``agentos check`` says it, and each start of the
agent fails with it, until the host has what is named. docs/decisions/0091.
"""

import os
import shutil
import stat
from collections.abc import Iterator

from agentos.agents.jail import layout
from agentos.agents.jail.interpreters import NoInterpreter, interpreter
from agentos.agents.spec import AgentSpec, HostFault
from agentos.services.files.regular_file import reopen
from agentos_sdk.errors import NotFound


def find_host_faults(spec: AgentSpec) -> Iterator[HostFault]:
    """All of a spec whose paths are resolved. Blocks."""
    yield from find_program_faults(spec)
    if spec.jailed:
        yield from layout.find_host_faults(spec)


def find_program_faults(spec: AgentSpec) -> Iterator[HostFault]:
    """Those of its program, its interpreter and the directory of a program without a jail. Blocks."""
    if not spec.jailed and spec.cwd is not None and not os.path.isdir(spec.cwd):
        yield HostFault("cwd", f"there is no directory {spec.cwd}", NotFound)
    if spec.python is not None and spec.image is None:
        yield from _find_interpreter_faults(spec.python)
    if spec.script is not None:
        yield from _find_script_faults(spec.script)
    try:
        program = layout.program_file(spec)
    except HostFault:  # of its code
        return
    if program is not None:
        yield from _find_command_faults(program)


def _find_interpreter_faults(python: str) -> Iterator[HostFault]:
    found = shutil.which(python)
    if found is None:
        yield HostFault("python", describe_missing_interpreter(python), NotFound)
        return
    try:
        interpreter(found)
    except (NoInterpreter, OSError) as error:
        yield HostFault("python", str(error))


def describe_missing_interpreter(python: str) -> str:
    """The mistake of an interpreter that isn't there."""
    return f"expected an interpreter, and there is no {python!r} that can be run"


def _find_script_faults(script: str) -> Iterator[HostFault]:
    try:
        fd = os.open(script, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                yield HostFault("script", f"{script} is no file")
            else:
                os.close(reopen(fd, os.O_RDONLY))
        finally:
            os.close(fd)
    except FileNotFoundError:
        yield HostFault("script", f"there is no file {script}", NotFound)
    except OSError as error:
        yield HostFault("script", f"{script} can't be read: {error.strerror}")


def _find_command_faults(program: str) -> Iterator[HostFault]:
    if not os.path.exists(program):
        why = "no such file"
    elif not os.path.isfile(program):
        why = "not a file"
    elif not os.access(program, os.X_OK):
        why = "not executable"
    else:
        return
    yield HostFault(("command", 0), f"expected a program that can be run, got {program!r}: {why}", NotFound)
