"""Paths in SPAWN: resolves host paths, or for a jailed agent paths in its own jail."""

import os
import shutil
import stat
from collections.abc import Sequence

from attrs import evolve, frozen

from agentos.agents.jail import layout
from agentos.agents.life import PATH
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec, workspace_of
from agentos.agents.workspaces import script_copies
from agentos.sandbox.plan import WORKSPACE
from agentos.services.files.resolve import check_all_sole, check_sole
from agentos_sdk.calls.agents import Spawn
from agentos_sdk.errors import BadRequest, NotFound, PermissionDenied

HOSTS = "is a path of the host's, and {name} has none of these: it has its own /agent and /workspace"


@frozen
class Places:
    """Resolves the paths of one request. All methods block.

    ``base`` is the directory that the operator's relative paths are resolved against. ``runtime`` is the directory of
    this kernel's run, for files copied out of a jail.
    """

    base: str
    parent: Agent | None  # the calling agent; None for the operator
    runtime: str
    sole: bool = False  # refuse a host file with several names (hard links), as READ does

    def outside(self, spec: AgentSpec, request: Spawn) -> AgentSpec:
        """Resolve the paths of an agent without a jail."""
        if request.code is not None or request.workspace is not None or request.runtime == "fast":
            raise BadRequest("code, workspace, runtime: only a jail has these, and none was asked for")
        for mistake in layout.bad_limits(spec):
            raise mistake
        cwd = self.host(request.cwd or self.base)
        if not os.path.isdir(cwd):
            raise NotFound(f"cwd: there is no directory {cwd}")
        search = request.env.get("PATH", PATH)
        return evolve(
            spec,
            script=readable("script", self.host(request.script)) if request.script is not None else None,
            command=runnable("command", request.command, self.base, search) if request.command else None,
            cwd=cwd,
            python=runnable("python", (request.python,), self.base, PATH)[0] if request.python else None,
        )

    def inside(self, spec: AgentSpec, request: Spawn) -> AgentSpec:
        """Resolve the paths of an agent with a jail."""
        spec = evolve(spec, cwd=layout.directory_inside(request.cwd))
        if self.parent is not None and self.parent.spec.jailed:
            spec = self._of_a_jailed_parent(spec, request, self.parent)
        else:
            spec = layout.resolved(self._of_the_hosts(spec, request))
        try:
            layout.check(spec)
        except layout.LayoutError as error:
            script_copies.discard(spec)
            told = error.message if self.parent is None else layout.as_told(error.message, spec, self.parent.spec)
            raise layout.LayoutError(error.field, told) from None
        except Exception:
            script_copies.discard(spec)
            raise
        return spec

    def _of_the_hosts(self, spec: AgentSpec, request: Spawn) -> AgentSpec:
        script, code, command = request.script, request.code, tuple(request.command or ())
        if command and "/" in command[0]:
            command = (self.host(command[0]), *command[1:])
            if layout.own_program(evolve(spec, command=command)) is not None:
                runnable("command", command, self.base, "")
                self._check_sole("command", command[0])
        spec = evolve(
            spec,
            script=readable("script", self.host(script)) if script is not None else None,
            code=self.host(code) if code is not None else None,
            command=command or None,
            workspace=workspace_of(request.workspace, self.host),
            python=runnable("python", (request.python,), self.base, PATH)[0] if request.python else None,
        )
        self._check_sole("script", spec.script)
        self._check_sole("code", spec.code)
        self._check_sole("workspace", spec.workspace if spec.workspace not in ("tmp", "keep") else None)
        return spec

    def _check_sole(self, field: str, path: str | None) -> None:
        """Refuse what READ would refuse: a file with hard links, or a directory that contains one."""
        if self.sole and path is not None and os.path.exists(path):
            if os.path.isdir(path):
                check_all_sole(path, field)
            else:
                check_sole(os.stat(path), f"{field}: {path}")

    def _of_a_jailed_parent(self, spec: AgentSpec, request: Spawn, parent: Agent) -> AgentSpec:
        own = layout.shown(parent.spec)
        python = parent.spec.python
        if request.python is not None and request.python not in (python, os.path.basename(python or "")):
            raise PermissionDenied(f"python: {request.python} {HOSTS.format(name=parent.name)}; leave it out")
        if request.workspace == "keep":  # files that outlive the caller, on the host's disk under a name of its choice
            raise PermissionDenied("workspace: keep is the operator's to give: say tmp")
        if request.workspace not in (None, "tmp"):
            raise PermissionDenied(f"workspace: {request.workspace} {HOSTS.format(name=parent.name)}: say tmp")
        code = None
        if request.code is not None:
            code = layout.outside(os.path.normpath(os.path.join(WORKSPACE, request.code)), own)
            if code is None:
                raise PermissionDenied(f"code: {request.code}: expected a directory in your own /agent")
        script = None
        if request.script is not None:
            path = os.path.normpath(os.path.join(WORKSPACE, request.script))
            script = layout.outside(path, own)
        command = _command_inside(request.command, parent) if request.command else None
        workspace = workspace_of(request.workspace, lambda path: None)
        copied = request.script is not None and script is None
        if copied:  # last, so that a refused request has copied nothing
            script = script_copies.of_script(parent, path, self.runtime)
        return evolve(
            spec,
            script=script,
            copied=copied,
            code=code,
            command=command,
            workspace=workspace,
            python=python,
        )

    def program_of(self, request: Spawn) -> tuple[str | None, str | None]:
        """The host file a jail would be given to run, as named and as resolved; None if there is none."""
        named = request.script or (request.command or ("",))[0]
        if request.script is None and "/" not in named:
            return None, None
        asked = self.host(named)
        if request.script is None and layout.own_program(AgentSpec("nobody", command=(asked,))) is None:
            return None, None
        try:
            return asked, os.path.realpath(asked)
        except OSError as error:  # a part of the path is being replaced meanwhile
            raise BadRequest(f"a path that is named here can't be followed: {error.strerror}") from None

    def host(self, path: str) -> str:
        return "/" + os.path.normpath(os.path.join(self.base, os.path.expanduser(path))).lstrip("/")


def _command_inside(argv: Sequence[str], parent: Agent) -> tuple[str, ...]:
    """A command for a child of a jailed agent: only programs that every jail has, never a host file."""
    program, *rest = argv
    if "/" in program:
        program = os.path.normpath(os.path.join(WORKSPACE, program))
        if layout.own_program(evolve(parent.spec, command=(program,))) is not None:
            raise PermissionDenied(f"command: {program} {HOSTS.format(name=parent.name)}")
    return (program, *rest)


def readable(field: str, path: str) -> str:
    """``path`` if it is a readable file; raises ``NotFound`` or ``BadRequest`` otherwise."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadRequest(f"{field}: {path} is no file")  # also, opening a FIFO would wait for its writer
        with open(path, "rb"):
            return path
    except FileNotFoundError:
        raise NotFound(f"{field}: there is no file {path}") from None
    except OSError as error:
        raise BadRequest(f"{field}: {path} can't be read: {error.strerror}") from None


def runnable(field: str, argv: Sequence[str], base: str, search: str) -> tuple[str, ...]:
    """``argv`` with its program as an absolute path; raises ``NotFound`` if there is none."""
    program, *rest = argv
    if "/" in program:
        program = os.path.normpath(os.path.join(base, os.path.expanduser(program)))
    found = shutil.which(program, path=search)
    if found is None:
        raise NotFound(f"{field}: there is no program {program!r} that can be run")
    return (found, *rest)
