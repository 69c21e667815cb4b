"""From what an agent is to what its jail has in it: the host's paths to paths inside.

Inside, an agent's script or code is in /agent, its workspace in /workspace, and nothing else of the host's is there but
the system and the interpreter. Whoever names a place, a file or a caller, is told here what is wrong with it.
"""

import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from agentos.sandbox.plan import CODE, SDK, SYSTEM, WORKSPACE
from agentos.sandbox.policy import Interpreter, Limits, Policy, Program

from .inherit import effective, named
from .interpreters import NoInterpreter, interpreter
from .spec import AgentSpec
from .workspace import Workspace, unfit

START = "agentos_sdk/start.py"  # in a directory that holds the SDK
INSIDE = (WORKSPACE, CODE, "/tmp")  # where an agent's working directory may be
MOST = {"cpu_weight": 10_000, "max_pids": 1 << 22, "inodes": 1 << 32}  # what Linux takes
PERIOD = 100_000  # microseconds, of which a CPU quota is a part


class Misplaced(ValueError):
    """A path that can't be what it is given for. ``field`` is the one that names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@frozen
class Shown:
    """What /agent is made of: a ``script`` alone, or ``code``, a directory."""

    script: str | None = None
    code: str | None = None


def directory_inside(cwd: str | None) -> str:
    """A working directory as the jail has it; a relative one begins at /workspace."""
    path = os.path.normpath(os.path.join(WORKSPACE, cwd or "."))
    if not any(path == place or path.startswith(f"{place}/") for place in INSIDE):
        raise Misplaced(
            "cwd", f"expected a directory in {', '.join(INSIDE)}, which are all that a jail has, got {cwd!r}"
        )
    return path


def resolved(spec: AgentSpec) -> AgentSpec:
    """A spec whose host paths have no link in them any more; from then on none is followed. Blocks.

    Once, when the spec is made: whoever may write in one of these directories could lead a later life astray.
    """
    script, code, program = spec.script, spec.code, own_program(spec)
    if program is not None and spec.command is not None:
        spec = evolve(spec, command=(os.path.realpath(program), *spec.command[1:]))
    return evolve(
        spec,
        script=os.path.realpath(script) if script is not None else None,
        code=os.path.realpath(code) if code is not None else None,
    )


def check(spec: AgentSpec) -> None:
    """Whether a jail can have what the spec names; :class:`Misplaced` if not. Blocks: it looks at the files."""
    for mistake in mistakes(spec):
        raise mistake


def mistakes(spec: AgentSpec) -> Iterator[Misplaced]:
    """All that the spec names and a jail can't have. Blocks: it looks at the files."""
    try:
        shown(spec)
    except Misplaced as error:
        yield error
    else:
        if spec.code is not None and not os.access(spec.code, os.R_OK | os.X_OK):
            yield Misplaced("code", f"expected a directory that can be read, got {spec.code!r}")
    if spec.workspace not in ("tmp", "keep"):
        if not os.path.isdir(spec.workspace):
            yield Misplaced("workspace", f"expected tmp, keep or a directory, got {spec.workspace!r}")
        elif (why := unfit(spec.workspace)) is not None:
            yield Misplaced("workspace", f"expected a directory that an agent may have, got {spec.workspace!r}: {why}")
    if spec.runtime == "fast" and spec.script is None:
        yield Misplaced("runtime", "fast runs a script, and this is a command")
    if spec.runtime == "fast" and spec.python is not None:
        yield Misplaced("runtime", "fast uses the kernel's own interpreter: leave out python, or say exec")
    yield from bad_limits(spec)


def bad_limits(spec: AgentSpec) -> Iterator[Misplaced]:
    """The limits that can't be any, with a jail or without one. Pure."""
    for name, amount in named(spec.limits).items():
        most = MOST.get(name)
        if name != "cpu_quota" and (amount < 1 or (most is not None and amount > most)):
            expected = "at least 1" if most is None else f"1 to {most}"
            yield Misplaced(f"limits.{name}", f"expected {expected}, got {amount}")


def shown(spec: AgentSpec) -> Shown:
    """What of the host's files an agent gets to see of its program. Blocks."""
    code = spec.code
    if code is not None and not os.path.isdir(code):
        raise Misplaced("code", f"expected a directory, got {code!r}")
    program = spec.script if spec.script is not None else own_program(spec)
    if program is None:
        return Shown(code=code)
    if code is None:
        return Shown(script=program)
    if os.path.commonpath([program, code]) != code:
        field = "script" if spec.script is not None else "command"
        raise Misplaced(field, f"expected a file in code ({code}), since /agent has nothing else, got {program!r}")
    return Shown(code=code)


def own_program(spec: AgentSpec) -> str | None:
    """A command's program where it is a file that no jail has by itself, and so has to be shown. Blocks."""
    program = (spec.command or ("",))[0]
    if "/" not in program:
        return None
    there = (*SYSTEM, WORKSPACE, CODE, *prefixes(spec))
    return None if any(program.startswith(f"{place}/") for place in there) else program


def prefixes(spec: AgentSpec) -> Sequence[str]:
    """Where the interpreter is that a jail has. Blocks."""
    try:
        python = interpreter(spec.python) if spec.python is not None else _our_own()
    except (OSError, NoInterpreter):  # whoever starts it says so
        return ()
    return (python.prefix, python.base_prefix)


@functools.cache
def _our_own() -> Interpreter:
    """The one that we are run by, as it was when it was first asked for: a jail gets that in any case."""
    return interpreter(sys.executable)


def program_file(spec: AgentSpec) -> str | None:
    """The host's file that a command's program is; None for one that is looked for in its PATH or its workspace."""
    program = (spec.command or ("",))[0]
    if "/" not in program or (spec.jailed and program.startswith(f"{WORKSPACE}/")):
        return None
    if spec.jailed and program.startswith(f"{CODE}/"):
        return outside(program, shown(spec)) or program
    return program


def inside(host_path: str, what: Shown) -> str:
    """Where a file of the host's is in /agent."""
    if what.code is not None:
        return os.path.join(CODE, os.path.relpath(host_path, what.code))
    return os.path.join(CODE, os.path.basename(host_path))


def outside(path: str, what: Shown) -> str | None:
    """Where on the host a path in an agent's own /agent is; None for any other, and for what isn't there."""
    if what.script is not None:
        return what.script if path == inside(what.script, what) else None
    if what.code is None or os.path.commonpath([path, CODE]) != CODE:
        return None
    found = os.path.realpath(os.path.join(what.code, os.path.relpath(path, CODE)))
    return found if os.path.commonpath([found, what.code]) == what.code and os.path.exists(found) else None


def as_told(text: str, spec: AgentSpec, parent: AgentSpec | None) -> str:
    """What is wrong with an agent, for whoever spawned it: a jailed one hears of paths in its own jail."""
    if parent is None or not parent.jailed:
        return text
    if spec.copied and spec.script is not None:
        text = text.replace(spec.script, os.path.basename(spec.script))
    if parent.code is not None:
        return text.replace(parent.code, CODE)
    return text.replace(parent.script, inside(parent.script, Shown(parent.script))) if parent.script else text


def limits(spec: AgentSpec) -> Limits:
    """An agent's limits as a sandbox has them."""
    found = effective(spec)
    if not spec.jailed:
        return Limits(
            **{
                name: value
                for name, value in (("open_files", found.open_files), ("file_size", found.file_size))
                if value
            }
        )
    assert found.cpu_quota is not None
    quota = max(1, round(found.cpu_quota * PERIOD))
    names = ("memory", "max_pids", "cpu_weight", "open_files", "file_size", "disk", "inodes", "tmp")
    return Limits(cpu_quota=quota, **{name: getattr(found, name) for name in names})


def policy(
    spec: AgentSpec,
    what: Shown,
    python: Interpreter,
    workspace: Workspace,
    socket: str | None,
    sdk: str,
    port: int | None = None,
) -> Policy:
    """What exists in an agent's jail. ``sdk`` is the directory of the package; ``port`` is for its own network only."""
    return Policy(
        interpreter=python,
        script=what.script,
        code=what.code,
        workspace=workspace.mount,
        sdk=sdk,
        socket=socket,
        network=spec.network,
        port=None if spec.network else port,
        limits=limits(spec),
        profile="strict" if spec.isolation == "strict" else "standard",
        hostname=spec.name[:64],
    )


def program(spec: AgentSpec, what: Shown, python: str, environment: Mapping[str, str]) -> Program:
    """What runs in the jail."""
    directory = spec.cwd or WORKSPACE
    if spec.script is not None:
        script = inside(spec.script, what)
        argv: Sequence[str] = (script,) if spec.runtime == "fast" else (python, f"{SDK}/{START}", script)
        return Program((*argv, *spec.args), environment, directory, fast=spec.runtime == "fast")
    first, *rest = spec.command or ()
    first = first if own_program(spec) is None else inside(first, what)
    return Program((first, *rest, *spec.args), environment, directory)


def bare_program(spec: AgentSpec, python: str, sdk: str, environment: Mapping[str, str]) -> Program:
    """What runs without a jail. ``sdk`` is the directory that holds the SDK and nothing else."""
    argv = (*(spec.command or ()), *spec.args)
    if spec.script is not None:
        argv = (python, f"{sdk}/{START}", spec.script, *spec.args)
    return Program(argv, environment, spec.cwd or "/")
