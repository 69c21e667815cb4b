"""Jail contents: turns an agent's spec into the sandbox policy, mapping host paths to paths inside the jail.

In the jail the agent's script or code is in /agent and its workspace in /workspace. Of the host's other files only the
system and the interpreter are visible. The checks here name the spec's field that is wrong.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen
from msgspec.structs import replace

from agentos.agents.inherit import effective, named
from agentos.agents.spec import AgentSpec, BadField, HostFault
from agentos.agents.workspaces.workspace import Workspace, describe_unfit
from agentos.images.store import NAME, NAME_RULE, Opened
from agentos.sandbox.files.root_files import CODE, SDK, SYSTEM_PATHS, WORKSPACE
from agentos.sandbox.plan import DEFAULT_PATH
from agentos.sandbox.policy import Interpreter, Limits, Policy, Program, RootImage
from agentos.sandbox.steps import SocketAddress
from agentos_sdk.errors import NotFound

from .interpreters import NoInterpreter, interpreter

START = "agentos_sdk/start.py"  # relative to a directory that holds the SDK
JAIL_DIRECTORIES = (WORKSPACE, CODE, "/tmp")  # the directories of its jail that an agent may name
MAX_LIMITS = {"cpu_weight": 10_000, "max_pids": 1 << 22, "inodes": 1 << 32}  # upper limits that Linux accepts
MIN_MEMORY = 2 << 20  # bytes: /bin/sh in a jail needs 1.5 MiB where a cgroup counts, Python 6 MiB (both measured)
CPU_PERIOD_MICROSECONDS = 100_000  # a CPU quota is a part of this period


class LayoutError(BadField):
    """A path or a limit that the spec can't have."""


@frozen
class AgentContents:
    """The contents of /agent: a single ``script``, or the directory ``code``."""

    script: str | None = None
    code: str | None = None


def absolute_inside(path: str) -> str:
    """The path in a jail that its agent means; a relative one starts at /workspace."""
    return os.path.normpath(os.path.join(WORKSPACE, path))


def is_inside(path: str) -> bool:
    """Whether an absolute path leads to one of the directories that a jail's agent may name, or below it."""
    return any(path == place or path.startswith(f"{place}/") for place in JAIL_DIRECTORIES)


def directory_of(spec: AgentSpec | None, cwd: str | None) -> str | None:
    """A working directory inside the jail; in an image any directory will do, and None is the image's own."""
    if spec is not None and spec.image is not None:
        return absolute_inside(cwd) if cwd is not None else None
    path = absolute_inside(cwd or ".")
    if not is_inside(path):
        raise LayoutError(
            "cwd", f"expected a directory in {', '.join(JAIL_DIRECTORIES)}, which are all that a jail has, got {cwd!r}"
        )
    return path


def resolved(spec: AgentSpec) -> AgentSpec:
    """A spec with all symlinks in its host paths resolved; none is followed afterwards. Blocks.

    Done once, when the spec is made: a process that can write to one of these directories could otherwise redirect a
    later life.
    """
    script, code, program = spec.script, spec.code, own_program(spec)
    if program is not None and spec.command is not None:
        spec = replace(spec, command=(os.path.realpath(program), *spec.command[1:]))
    return replace(
        spec,
        script=os.path.realpath(script) if script is not None else None,
        code=os.path.realpath(code) if code is not None else None,
    )


def find_host_faults(spec: AgentSpec) -> Iterator[HostFault]:
    """What is wrong with the directories that it names. Blocks: it reads the file system."""
    if spec.code is not None:
        if not os.path.isdir(spec.code):
            yield HostFault("code", f"expected a directory, got {spec.code!r}")
        elif not os.access(spec.code, os.R_OK | os.X_OK):
            yield HostFault("code", f"expected a directory that can be read, got {spec.code!r}")
    if spec.workspace not in ("tmp", "keep"):
        if not os.path.isdir(spec.workspace):
            yield HostFault("workspace", f"expected tmp, keep or a directory, got {spec.workspace!r}")
        elif (why := describe_unfit(spec.workspace)) is not None:
            yield HostFault("workspace", f"expected a directory that an agent may have, got {spec.workspace!r}: {why}")


def mistakes(spec: AgentSpec) -> Iterator[BadField]:
    """All mistakes of the spec's paths and limits that are the same on each host. Blocks: it reads the file system."""
    with contextlib.suppress(HostFault):
        try:
            find_contents(spec)
        except LayoutError as error:
            yield error
    if spec.runtime == "fast" and spec.script is None:
        yield LayoutError("runtime", "fast runs a script, and this is a command")
    if spec.runtime == "fast" and spec.python is not None:
        yield LayoutError("runtime", "fast uses the kernel's own interpreter: leave out python, or say exec")
    if spec.terminals and spec.isolation == "strict":
        yield LayoutError("terminals", "isolation strict has none: say false, or isolation standard")
    if spec.image is not None:
        yield from _image_mistakes(spec, spec.image)
    if spec.user == "root":
        yield from _root_mistakes(spec)
    if spec.workspace_mode == "overlay" and spec.workspace in ("tmp", "keep"):
        yield LayoutError("workspace", f"mode overlay needs the path of a directory, got {spec.workspace!r}")
    yield from bad_limits(spec)


def _image_mistakes(spec: AgentSpec, image: str) -> Iterator[LayoutError]:
    if not NAME.fullmatch(image):
        yield LayoutError("image", f"expected {NAME_RULE}, got {image!r}")
    if spec.runtime == "fast":
        yield LayoutError("runtime", "fast uses the kernel's own interpreter, which no image has: say exec")
    program = (spec.command or ("",))[0]
    if "/" in program and not program.startswith("/"):
        yield LayoutError(("command", 0), f"expected a name or an absolute path in the image, got {program!r}")
    if spec.python is not None and "/" in spec.python and not spec.python.startswith("/"):
        yield LayoutError("python", f"expected a name or an absolute path in the image, got {spec.python!r}")


def _root_mistakes(spec: AgentSpec) -> Iterator[LayoutError]:
    if spec.image is None:
        yield LayoutError("user", "only an image has a root inside: give it an image, or leave it out")
    if spec.isolation == "strict":
        why = "isolation strict has its image read-only, and no root inside"
        yield LayoutError("user", f"{why}: say isolation standard, or leave it out")
    if spec.workspace not in ("tmp", "keep") and spec.workspace_mode != "overlay":
        fix = 'say workspace = { path = "…", mode = "overlay" }, "keep" or "tmp", or leave it out'
        yield LayoutError("user", f"set-id files of root inside may not lie in a directory of the host's: {fix}")


def bad_limits(spec: AgentSpec) -> Iterator[LayoutError]:
    """Limits with values out of range, for agents with or without a jail. Pure."""
    for name, amount in named(spec.limits).items():
        most = MAX_LIMITS.get(name)
        if name == "memory" and amount < MIN_MEMORY:
            expected = f"at least {MIN_MEMORY >> 20}M, a number alone being bytes"
            yield LayoutError(("limits", name), f"expected {expected}, got {amount}")
        elif name != "cpu_quota" and (amount < 1 or (most is not None and amount > most)):
            expected = "at least 1" if most is None else f"1 to {most}"
            yield LayoutError(("limits", name), f"expected {expected}, got {amount}")


def find_contents(spec: AgentSpec) -> AgentContents:
    """The host file or directory that an agent sees as /agent: its script or its code. Blocks."""
    code = spec.code
    if code is not None and not os.path.isdir(code):
        raise HostFault("code", f"expected a directory, got {code!r}")
    program = spec.script if spec.script is not None else own_program(spec)
    if program is None:
        return AgentContents(code=code)
    if code is None:
        return AgentContents(script=program)
    if os.path.commonpath([program, code]) != code:
        field = "script" if spec.script is not None else "command"
        raise LayoutError(field, f"expected a file in code ({code}), since /agent has nothing else, got {program!r}")
    return AgentContents(code=code)


def own_program(spec: AgentSpec) -> str | None:
    """A command's program if it is a host file that isn't in every jail and so must be mounted. Blocks."""
    program = (spec.command or ("",))[0]
    if "/" not in program or spec.image is not None:
        return None
    if is_in_every_jail(program, spec) or program.startswith((f"{WORKSPACE}/", f"{CODE}/")):
        return None
    return program


def is_in_every_jail(path: str, spec: AgentSpec) -> bool:
    """Whether it is a path of the system's or of the agent's interpreter. Blocks."""
    return any(path.startswith(f"{place}/") for place in (*SYSTEM_PATHS, *prefixes(spec)))


def has_file(spec: AgentSpec, path: str) -> bool:
    """Whether a jailed agent finds a file at this path, relative to its directory, when it starts. Blocks."""
    path = os.path.normpath(os.path.join(spec.cwd or WORKSPACE, path))
    if path.startswith(f"{WORKSPACE}/"):
        return os.path.isfile(os.path.join(spec.workspace, os.path.relpath(path, WORKSPACE)))
    if path.startswith(f"{CODE}/"):
        return path_on_host(path, find_contents(spec)) is not None
    return spec.image is not None or (is_in_every_jail(path, spec) and os.path.isfile(path))


def prefixes(spec: AgentSpec) -> Sequence[str]:
    """Directories of the interpreter that the jail has. Blocks."""
    try:
        python = interpreter(spec.python) if spec.python is not None else _our_own()
    except (OSError, NoInterpreter):  # reported when the agent is started
        return ()
    return (python.prefix, python.base_prefix)


@functools.cache
def _our_own() -> Interpreter:
    """The interpreter that runs the kernel, as found at the first call; agents without ``python`` use it."""
    return interpreter(os.path.normpath(sys.executable))


def program_file(spec: AgentSpec) -> str | None:
    """The host file of a command's program; None if it is looked up in PATH, in the workspace or in an image."""
    program = (spec.command or ("",))[0]
    if "/" not in program or (spec.jailed and program.startswith(f"{WORKSPACE}/")):
        return None
    if spec.image is not None and not program.startswith(f"{CODE}/"):
        return None
    if spec.jailed and program.startswith(f"{CODE}/"):
        return path_on_host(program, find_contents(spec)) or program
    return program


def path_in_jail(host_path: str, contents: AgentContents) -> str:
    """The path in /agent of a host file."""
    if contents.code is not None:
        return os.path.join(CODE, os.path.relpath(host_path, contents.code))
    return os.path.join(CODE, os.path.basename(host_path))


def path_on_host(path: str, contents: AgentContents) -> str | None:
    """The host path of a path in the agent's /agent; None for other paths and for files that don't exist."""
    if contents.script is not None:
        return contents.script if path == path_in_jail(contents.script, contents) else None
    if contents.code is None or os.path.commonpath([path, CODE]) != CODE:
        return None
    found = os.path.realpath(os.path.join(contents.code, os.path.relpath(path, CODE)))
    return found if os.path.commonpath([found, contents.code]) == contents.code and os.path.exists(found) else None


def replace_host_paths(text: str, spec: AgentSpec | None, parent: AgentSpec | None) -> str:
    """An error about an agent, worded for its parent: host paths are replaced by paths in the parent's jail.

    ``spec``: of the agent, None before it is made.
    """
    if parent is None or not parent.jailed:
        return text
    if spec is not None and spec.copied and spec.script is not None:
        text = text.replace(spec.script, os.path.basename(spec.script))
    if parent.code is not None:
        return text.replace(parent.code, CODE)
    return (
        text.replace(parent.script, path_in_jail(parent.script, AgentContents(parent.script)))
        if parent.script
        else text
    )


def limits(spec: AgentSpec) -> Limits:
    """An agent's limits in the form that the sandbox takes."""
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
    quota = max(1, round(found.cpu_quota * CPU_PERIOD_MICROSECONDS))
    names = ("memory", "max_pids", "cpu_weight", "open_files", "file_size", "disk", "inodes", "tmp")
    return Limits(cpu_quota=quota, **{name: getattr(found, name) for name in names})


def policy(
    spec: AgentSpec,
    contents: AgentContents,
    python: Interpreter,
    workspace: Workspace,
    socket: str | None,
    sdk: str,
    sockets: tuple[SocketAddress, ...] = (),
    image: Opened | None = None,
) -> Policy:
    """An agent's sandbox policy. ``sdk`` is the package's directory; ``sockets`` are those in a network of its own."""
    return Policy(
        interpreter=python,
        script=contents.script,
        code=contents.code,
        workspace=workspace.mount,
        sdk=sdk,
        socket=socket,
        network=spec.network,
        sockets=sockets,
        terminals=spec.terminals,
        limits=limits(spec),
        profile="strict" if spec.isolation == "strict" else "standard",
        hostname=spec.name[:64],
        image=root_image(image) if image is not None else None,
        inside_root=image is not None and spec.user == "root",
    )


def root_image(opened: Opened) -> RootImage:
    """An image as the root of a sandbox."""
    image, config = opened.image, opened.image.config
    return RootImage(
        path=opened.path,
        directories=image.directories,
        files=image.files,
        environment=tuple(config.env.items()),
        user=config.user,
        accounts=image.accounts,
        owned=opened.owned,
        upper=opened.upper,
    )


def complete(spec: AgentSpec, image: Opened) -> AgentSpec:
    """The spec with what it takes of its image where it says nothing. Raises :class:`HostFault`. Blocks."""
    config = image.image.config
    if spec.cwd is None:
        spec = replace(spec, cwd=config.working_dir if config.working_dir not in ("", "/") else WORKSPACE)
    if spec.script is not None:
        path = {**config.env, **spec.env}.get("PATH", DEFAULT_PATH)
        python = spec.python or "python3"
        if not image.has_program(python, path):
            what = f"the image {image.image.name} has no {python}"
            raise HostFault("python", f"{what}: import one that has it, or give the agent a command", NotFound)
        return replace(spec, python=python)
    if not spec.command and not config.cmd:
        why = "has an ENTRYPOINT, which isn't run" if config.entrypoint else "has no CMD"
        raise HostFault("command", f"the image {image.image.name} {why}: give the agent a command")
    return spec if spec.command else replace(spec, command=config.cmd)


def program(spec: AgentSpec, contents: AgentContents, python: str, environment: Mapping[str, str]) -> Program:
    """The program that runs in the jail."""
    directory = spec.cwd or WORKSPACE
    if spec.script is not None:
        script = path_in_jail(spec.script, contents)
        argv: Sequence[str] = (script,) if spec.runtime == "fast" else (python, f"{SDK}/{START}", script)
        return Program((*argv, *spec.args), environment, directory, fast=spec.runtime == "fast")
    first, *rest = spec.command or ()
    first = first if own_program(spec) is None else path_in_jail(first, contents)
    return Program((first, *rest, *spec.args), environment, directory)


def bare_program(spec: AgentSpec, python: str, sdk: str, environment: Mapping[str, str]) -> Program:
    """The program that runs without a jail. ``sdk`` is a directory that holds only the SDK."""
    argv = (*(spec.command or ()), *spec.args)
    if spec.script is not None:
        argv = (python, f"{sdk}/{START}", spec.script, *spec.args)
    return Program(argv, environment, spec.cwd or "/")
