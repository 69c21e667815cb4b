"""Configuration builder: converts the file's tables to specs and settings and collects all mistakes."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from agentos.agents.jail import layout
from agentos.agents.jail.interpreters import NoInterpreter, interpreter
from agentos.agents.spec import AgentSpec, GroupSpec, Isolation, Limits, isolation_of, workspace_of
from agentos.config import llm as model
from agentos.config import permissions
from agentos.config.schema import (
    AgentTable,
    BackoffTable,
    FileTable,
    KernelSettings,
    RootTable,
    SupervisorTable,
)
from agentos.llm.settings import LLMSettings
from agentos.permissions.rule import PermissionSet
from agentos.permissions.set_schema import LimitsTable
from agentos.services.quotas import Quota
from agentos_sdk.codec import path
from supervisors import Backoff, ChildSpec, SpecError, SupervisorSpec

from .reader import Read, Reader
from .toml_lines import Keys

ROOT = "root"
MADE_ELSEWHERE = (
    *("type", "script", "command", "cwd", "python", "limits", "backoff", "isolation", "sandboxed", "code"),
    *("workspace", "llm", "permissions"),
)  # fields of an agent's table that are converted separately


class Builder(Reader):
    """Reads one file's data."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._names: dict[str, Keys] = {}
        self._budgets: list[tuple[Keys, Sequence[Quota]]] = []
        self._sets: Mapping[str, PermissionSet] = {}

    def build(self, data: object) -> tuple[KernelSettings, LLMSettings, Mapping[str, PermissionSet], GroupSpec]:
        """The kernel's settings, the model's settings, the permission sets, and the root of the tree."""
        file = self.read(FileTable, data, ()).table
        kernel = self.read(KernelSettings, file.kernel, ("kernel",)).table
        places = {name: self.place(getattr(kernel, name)) for name in ("socket", "state_dir")}
        root = self.read(RootTable, file.supervisor, ("supervisor",))
        self._sets = permissions.permissions(self, file.permissions)
        self._budgets += [(("permissions", name, "quotas"), found.quotas) for name, found in self._sets.items()]
        llm, group = model.llm(self, file.llm), self._group(root, ROOT)
        model.check_prices(self, llm, self._budgets)
        return attrs.evolve(kernel, **places), llm, self._sets, group

    def _group(self, read: Read, name: str) -> GroupSpec:
        given = read.given("type", "children", "backoff", "name", "llm")
        group = GroupSpec(name=name, **given)
        children = []
        for index, data in enumerate(read.table.children):
            child = self._child(data, (*read.keys, "children", index))
            if child is not None:
                spec, found = child
                self._check_terms(spec, found, group, read)
                children.append(spec)
        return attrs.evolve(group, children=tuple(children))

    def _child(self, data: object, keys: Keys) -> tuple[AgentSpec | GroupSpec, Read] | None:
        kind = data.get("type", "agent") if isinstance(data, dict) else "agent"
        if kind not in ("agent", "supervisor"):
            # The intended type is unknown, so its other fields can't be checked.
            self.read(AgentTable, {"name": "nameless", "type": kind}, keys)
            return None
        read = self.read(SupervisorTable if kind == "supervisor" else AgentTable, data, keys)
        if not isinstance(data, dict):
            return None
        self._claim_name(read)
        spec = self._group(read, read.table.name) if kind == "supervisor" else self._agent(read, data)
        share = model.share(self, read.table.llm, read.keys)
        self._budgets.append(((*read.keys, "llm", "budget"), share.budget))
        more: dict[str, Any] = {"backoff": self._backoff(read), "llm": share}
        return attrs.evolve(spec, **more), read

    def _agent(self, read: Read, data: Mapping[str, object]) -> AgentSpec:
        table: AgentTable = read.table
        if "script" in data and "command" in data:
            self.wrong(read, "a script or a command, but not both", "command")
        elif "script" not in data and "command" not in data:
            self.wrong(read, "a script or a command is missing")
        script = self.place(table.script)
        if script is not None and (why := unreadable(script)):
            self.wrong(read, f"expected a readable file, got {script!r}: {why}", "script")
        command = table.command
        if command and "/" in command[0]:
            command = (str(self.place(command[0])), *command[1:])
        limits = Limits()
        if table.limits is not None:
            limits = Limits(**self.read(LimitsTable, table.limits, (*read.keys, "limits")).given())
        spec = AgentSpec(
            script=script,
            command=command,
            python=self._python(read),
            limits=limits,
            isolation=self._isolation(read),
            code=self.place(table.code),
            workspace=workspace_of(table.workspace, self.place),
            permissions=self._permissions(read),
            **read.given(*MADE_ELSEWHERE),
        )
        spec = layout.resolved(spec) if spec.jailed else spec
        self._check_places(spec, read)
        if not spec.jailed:
            return attrs.evolve(spec, cwd=self.place(table.cwd) or str(self.directory))
        try:
            return attrs.evolve(spec, cwd=layout.directory_inside(table.cwd))
        except layout.LayoutError as error:
            self.wrong(read, error.message, error.field)
            return spec

    def _check_places(self, spec: AgentSpec, read: Read) -> None:
        """Report host files and directories that can't be used as configured."""
        for mistake in layout.mistakes(spec) if spec.jailed else layout.bad_limits(spec):
            if mistake.field not in read.wrong:
                self.wrong(read, mistake.message, *mistake.field.split("."))
        if not spec.jailed:
            for name in ("code", "workspace", "runtime"):
                if getattr(read.table, name) not in (None, "exec"):
                    self.wrong(read, "only a jail has this, and isolation is none: leave it out", name)
        if (program := layout.program_file(spec)) is not None and (why := unusable(program)):
            self.wrong(read, f"expected a program that can be run, got {program!r}: {why}", "command", 0)

    def _isolation(self, read: Read) -> Isolation:
        level, sandboxed = read.table.isolation, read.table.sandboxed
        try:
            return isolation_of(level, sandboxed)
        except ValueError as error:
            self.wrong(read, str(error), "isolation")
            return "standard"

    def _permissions(self, read: Read) -> PermissionSet | None:
        given = permissions.of_agent(self, read.table.permissions, read.table.name, self._sets, read.keys)
        if given is not None and given not in self._sets.values():
            self._budgets.append(((*read.keys, "permissions", "quotas"), given.quotas))
        return given

    def _python(self, read: Read) -> str | None:
        python: str | None = read.table.python
        if python is None:
            return None
        found = shutil.which(str(self.place(python)) if "/" in python else python)
        if found is None:
            self.wrong(read, f"expected an interpreter, and there is no {python!r} that can be run", "python")
            return None
        try:
            interpreter(found)
        except (NoInterpreter, OSError) as error:
            self.wrong(read, str(error), "python")
        return found

    def _backoff(self, read: Read) -> Backoff | None:
        if read.table.backoff is None:
            return None
        found = self.read(BackoffTable, read.table.backoff, (*read.keys, "backoff"))
        if found.wrong:
            return None
        try:
            return Backoff(**found.given())
        except SpecError as error:
            self.wrong(read, str(error).removeprefix("backoff: "), "backoff")
            return None

    def _check_terms(self, child: AgentSpec | GroupSpec, found: Read, group: GroupSpec, around: Read) -> None:
        """Report what a supervisor would refuse later. Its own checks decide, run separately to report all.

        If a field is invalid itself, the check gets the most permissive value.
        """
        if found.table.on_give_up is not None and group.strategy != "one_for_one" and "strategy" not in around.wrong:
            self.wrong(
                found,
                f"children of a {group.strategy} supervisor are given up together, by its intensity and period: leave "
                "it out here",
                "on_give_up",
            )
        if child.significant:
            restart = "transient" if "restart" in found.wrong else child.restart
            heeded = "any_significant" if "auto_shutdown" in around.wrong else group.auto_shutdown
            with self._terms_of(child, found, "significant"):
                one = ChildSpec(child.name, SupervisorSpec(), restart=restart, significant=True)
                SupervisorSpec([one], auto_shutdown=heeded)
        if child.backoff and "restart" not in found.wrong and not around.wrong & {"intensity", "period"}:
            with self._terms_of(child, found, "backoff"):
                one = ChildSpec(child.name, SupervisorSpec(), restart=child.restart, backoff=child.backoff)
                SupervisorSpec([one], intensity=group.intensity, period=group.period)

    @contextmanager
    def _terms_of(self, child: AgentSpec | GroupSpec, found: Read, field: str) -> Iterator[None]:
        try:
            yield
        except SpecError as error:
            self.wrong(found, str(error).removeprefix(f"child {child.name!r}: "), field)

    def _claim_name(self, read: Read) -> None:
        if "name" in read.wrong:
            return
        first = self._names.setdefault(read.table.name, read.keys)
        if first != read.keys:
            self.wrong(read, f"the name {read.table.name!r} is taken by {path(first)}", "name")


def unreadable(place: str) -> str | None:
    """Why this isn't a readable file, or ``None`` if it is one."""
    try:
        if not stat.S_ISREG(os.stat(place).st_mode):
            return "not a file"
    except OSError as error:
        return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror).lower()
    return None if os.access(place, os.R_OK) else "permission denied"


def unusable(program: str) -> str | None:
    """Why this isn't a runnable program, or ``None`` if it is one."""
    if not os.path.exists(program):
        return "no such file"
    if not os.path.isfile(program):
        return "not a file"
    return None if os.access(program, os.X_OK) else "not executable"
