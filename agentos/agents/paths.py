"""The two resolvers of paths in an agent's description: on the host, and in the jail of the agent that spawns it."""

import os
import shutil
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentos.services.files.regular_file import check_single_link, check_single_links
from agentos_sdk.errors import NotFound, PermissionDenied

from .builder import ReportMistake, Request, report_bad_field
from .jail import layout
from .life.host_faults import describe_missing_interpreter, find_program_faults
from .life.life import PATH
from .registry import Agent
from .spec import AgentSpec, BadField

KINDS = ("tmp", "keep")  # workspaces that aren't a host directory


class HostPaths(Struct, frozen=True):
    """Resolves paths on the host: those of a configuration file, of the operator, or of a caller without a jail.

    Relative paths start at ``base``. ``single_link``: a file with several hard links is refused, as READ does.
    ``declared``: in a configuration file, where a program's name is looked up when it is started.
    """

    base: str
    single_link: bool = False
    declared: bool = False

    def resolve(self, spec: AgentSpec, request: Request, report: ReportMistake) -> AgentSpec:
        """Symlinks are followed here, once; the file system is read as the kernel."""
        workspace = "tmp" if request.workspace is None else request.workspace
        spec = replace(
            spec,
            script=self.absolute(request.script) if request.script is not None else None,
            command=tuple(request.command) if request.command else None,
            code=self.absolute(request.code) if request.code is not None else None,
            # No symlink in it is followed: an agent with write access to a parent directory could have created it.
            workspace=workspace if workspace in KINDS else self.absolute(workspace),
        )
        with report_bad_field(report):
            python = self._find_interpreter(request.python) if spec.image is None else request.python
            spec = replace(spec, python=python)
        with report_bad_field(report):
            spec = replace(spec, cwd=self._directory(spec, request.cwd))
        with report_bad_field(report):
            spec = self._find_program(spec)
        # A program that the jail has anyway, or that lies in its code: a spawner is told when it can't be started.
        is_judged = self.declared or not spec.jailed or layout.own_program(spec) is not None
        for fault in find_program_faults(spec if is_judged else replace(spec, command=None)):
            report(fault)
        if not spec.jailed:
            return spec
        if self.single_link:
            self._check_no_links(spec)
        return layout.resolved(spec)

    def absolute(self, path: str) -> str:
        """The host path that a path in the request means."""
        return "/" + os.path.normpath(os.path.join(self.base, os.path.expanduser(path))).lstrip("/")

    def program_of(self, script: str | None, command: Sequence[str] | None) -> tuple[str, str] | None:
        """The host file that a jail would be given to run, as named and as resolved; None if there is none. Blocks."""
        named = script or (command or ("",))[0]
        if script is None and "/" not in named:
            return None
        path = self.absolute(named)
        if script is None and layout.own_program(AgentSpec("unnamed", command=(path,))) is None:
            return None
        return path, os.path.realpath(path)

    def _directory(self, spec: AgentSpec, cwd: str | None) -> str | None:
        if spec.jailed:
            return layout.directory_of(spec, cwd)
        return self.absolute(cwd or self.base)

    def _find_interpreter(self, python: str | None) -> str | None:
        """The path of an interpreter; what it was called in a configuration file if this host has none, as yet."""
        if python is None:
            return None
        wanted = self.absolute(python) if "/" in python else python
        found = shutil.which(wanted, path=None if self.declared else PATH)  # None: of the kernel's own environment
        if found is None and not self.declared:
            raise BadField("python", describe_missing_interpreter(wanted), NotFound)
        return found or wanted

    def _find_program(self, spec: AgentSpec) -> AgentSpec:
        """The spec with the host path of the command's program."""
        program, *rest = spec.command or ("",)
        if spec.image is not None:
            return spec
        if "/" in program:
            spec = replace(spec, command=(self.absolute(program), *rest))
        elif program and not spec.jailed and not self.declared:
            search = spec.env.get("PATH", PATH)
            found = shutil.which(program, path=search)
            if found is None:
                message = f"expected a program that can be run, and there is no {program!r} in {search}"
                raise BadField(("command", 0), message, NotFound)
            spec = replace(spec, command=(found, *rest))
        return spec

    def _check_no_links(self, spec: AgentSpec) -> None:
        workspace = spec.workspace if spec.workspace not in KINDS else None
        named = {"command": layout.own_program(spec), "script": spec.script, "code": spec.code, "workspace": workspace}
        for field, path in named.items():
            if path is not None:
                check_no_links(field, path)


class JailPaths(Struct, frozen=True):
    """Resolves paths in the jail of the agent that spawns another: none leads to a host file that the jail lacks."""

    parent: Agent

    def resolve(self, spec: AgentSpec, request: Request, report: ReportMistake) -> AgentSpec:
        """The spec; the path of a script that must be copied is the one in the jail, and ``copied`` is true."""
        python, own = self.parent.spec.python, layout.find_contents(self.parent.spec)
        if request.python is not None and request.python not in (python, os.path.basename(python or "")):
            raise self._hosts("python", request.python, "; leave it out")
        if request.workspace == "keep":  # files that outlive the caller, on the host's disk under a name of its choice
            raise BadField("workspace", "keep is the operator's to give: say tmp", PermissionDenied)
        if request.workspace not in (None, "tmp"):
            raise self._hosts("workspace", request.workspace, ": say tmp")
        code, command = None, tuple(request.command or ())
        if (
            request.code is not None
            and (code := layout.path_on_host(layout.absolute_inside(request.code), own)) is None
        ):
            raise BadField("code", f"{request.code}: expected a directory in your own /agent", PermissionDenied)
        if command and "/" in command[0]:
            command = (layout.absolute_inside(command[0]), *command[1:])
            if layout.own_program(replace(self.parent.spec, command=command)) is not None:
                raise self._hosts("command", command[0])
        spec = replace(
            spec, code=code, command=command or None, python=python, cwd=layout.directory_of(spec, request.cwd)
        )
        if request.script is None:
            return spec
        path = layout.absolute_inside(request.script)
        script = layout.path_on_host(path, own)
        if script is None and (path in layout.JAIL_DIRECTORIES or not layout.is_inside(path)):
            raise self._hosts("script", path)
        return replace(spec, script=script or path, copied=script is None)

    def _hosts(self, field: str, path: str, instead: str = "") -> BadField:
        name = self.parent.name
        message = f"{path} is a path of the host's, and {name} has none of these: it has its own /agent and /workspace"
        return BadField(field, message + instead, PermissionDenied)


def check_no_links(field: str, path: str) -> None:
    """Refuse what READ would refuse: a file with hard links, or a directory that contains one. Blocks."""
    if os.path.isdir(path):
        check_single_links(path, field)
    elif os.path.exists(path):
        check_single_link(os.stat(path), f"{field}: {path}")
