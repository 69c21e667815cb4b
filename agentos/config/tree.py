"""From a file's tables to the values that run, with every mistake on the way."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs

from agentos.agents import dwelling
from agentos.agents.interpreters import NoInterpreter, interpreter
from agentos.agents.spec import AgentSpec, GroupSpec, Isolation, Limits, isolation_of, workspace_of
from agentos.config.lines import Keys
from agentos.config.schema import (
    AgentTable,
    BackoffTable,
    FileTable,
    KernelSettings,
    LimitsTable,
    RootTable,
    SupervisorTable,
)
from agentos_sdk.codec import Invalid, decode, path
from supervisors import Backoff, ChildSpec, SpecError, SupervisorSpec

T = TypeVar("T")

ROOT = "root"
MADE_ELSEWHERE = (
    *("type", "script", "command", "cwd", "python", "limits", "backoff", "isolation", "sandboxed", "code"),
    "workspace",
)  # fields of an agent's table that aren't taken over as they are


@attrs.frozen
class Read:
    """A table as far as it could be read: which of its fields are wrong, and so have their defaults here."""

    keys: Keys
    table: Any
    wrong: frozenset[str]

    def given(self, *without: str) -> dict[str, Any]:
        """What the file says, without the fields that are made into something else."""
        said = attrs.asdict(self.table, recurse=False).items()
        return {name: value for name, value in said if value is not None and name not in without}


class Builder:
    """Reads one file's data; ``mistakes`` grows while it does, and only without any is the result of use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mistakes: list[tuple[Keys, str]] = []
        self._names: dict[str, Keys] = {}

    def build(self, data: object) -> tuple[KernelSettings, GroupSpec]:
        """The kernel's settings and the root of the tree."""
        file = self._read(FileTable, data, ()).table
        kernel = self._read(KernelSettings, file.kernel, ("kernel",)).table
        places = {name: self._place(getattr(kernel, name)) for name in ("socket", "state_dir")}
        root = self._read(RootTable, file.supervisor, ("supervisor",))
        return attrs.evolve(kernel, **places), self._group(root, ROOT)

    def _read(self, cls: type[T], data: object, keys: Keys) -> Read:
        """What can be read of a table; where a field is wrong or missing, a stand-in takes its place."""
        try:
            return Read(keys, decode(cls, data), frozenset())
        except Invalid as error:
            found = error.mistakes
        self.mistakes += [((*keys, *mistake.keys), mistake.message) for mistake in found]
        wrong = frozenset(str(mistake.keys[0]) for mistake in found if mistake.keys)
        known = attrs.fields_dict(cls)  # type: ignore[arg-type]
        rest = data if isinstance(data, dict) else {}
        kept = {name: value for name, value in rest.items() if name in known and name not in wrong}
        if "name" in known:
            kept.setdefault("name", "nameless")
        return Read(keys, decode(cls, kept), wrong)

    def _group(self, read: Read, name: str) -> GroupSpec:
        given = read.given("type", "children", "backoff", "name")
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
            # What it was meant to be is unknown, and so is whether its other fields are right.
            self._read(AgentTable, {"name": "nameless", "type": kind}, keys)
            return None
        read = self._read(SupervisorTable if kind == "supervisor" else AgentTable, data, keys)
        if not isinstance(data, dict):
            return None
        self._claim_name(read)
        spec = self._group(read, read.table.name) if kind == "supervisor" else self._agent(read, data)
        return attrs.evolve(spec, backoff=self._backoff(read)), read

    def _agent(self, read: Read, data: Mapping[str, object]) -> AgentSpec:
        table: AgentTable = read.table
        if "script" in data and "command" in data:
            self._wrong(read, "a script or a command, but not both", "command")
        elif "script" not in data and "command" not in data:
            self._wrong(read, "a script or a command is missing")
        script = self._place(table.script)
        if script is not None and (why := unreadable(script)):
            self._wrong(read, f"expected a readable file, got {script!r}: {why}", "script")
        command = table.command
        if command and "/" in command[0]:
            command = (str(self._place(command[0])), *command[1:])
        limits = Limits()
        if table.limits is not None:
            limits = Limits(**self._read(LimitsTable, table.limits, (*read.keys, "limits")).given())
        spec = AgentSpec(
            script=script,
            command=command,
            python=self._python(read),
            limits=limits,
            isolation=self._isolation(read),
            code=self._place(table.code),
            workspace=workspace_of(table.workspace, self._place),
            **read.given(*MADE_ELSEWHERE),
        )
        spec = dwelling.resolved(spec) if spec.jailed else spec
        self._check_places(spec, read)
        if not spec.jailed:
            return attrs.evolve(spec, cwd=self._place(table.cwd) or str(self.directory))
        try:
            return attrs.evolve(spec, cwd=dwelling.directory_inside(table.cwd))
        except dwelling.Misplaced as error:
            self._wrong(read, error.message, error.field)
            return spec

    def _check_places(self, spec: AgentSpec, read: Read) -> None:
        """What of the host's files and directories can't be what it is named for."""
        for mistake in dwelling.mistakes(spec) if spec.jailed else dwelling.bad_limits(spec):
            if mistake.field not in read.wrong:
                self._wrong(read, mistake.message, *mistake.field.split("."))
        if not spec.jailed:
            for name in ("code", "workspace", "runtime"):
                if getattr(read.table, name) not in (None, "exec"):
                    self._wrong(read, "only a jail has this, and isolation is none: leave it out", name)
        if (program := dwelling.program_file(spec)) is not None and (why := unusable(program)):
            self._wrong(read, f"expected a program that can be run, got {program!r}: {why}", "command", 0)

    def _isolation(self, read: Read) -> Isolation:
        level, sandboxed = read.table.isolation, read.table.sandboxed
        try:
            return isolation_of(level, sandboxed)
        except ValueError as error:
            self._wrong(read, str(error), "isolation")
            return "standard"

    def _python(self, read: Read) -> str | None:
        python: str | None = read.table.python
        if python is None:
            return None
        found = shutil.which(str(self._place(python)) if "/" in python else python)
        if found is None:
            self._wrong(read, f"expected an interpreter, and there is no {python!r} that can be run", "python")
            return None
        try:
            interpreter(found)
        except (NoInterpreter, OSError) as error:
            self._wrong(read, str(error), "python")
        return found

    def _backoff(self, read: Read) -> Backoff | None:
        if read.table.backoff is None:
            return None
        found = self._read(BackoffTable, read.table.backoff, (*read.keys, "backoff"))
        if found.wrong:
            return None
        try:
            return Backoff(**found.given())
        except SpecError as error:
            self._wrong(read, str(error).removeprefix("backoff: "), "backoff")
            return None

    def _check_terms(self, child: AgentSpec | GroupSpec, found: Read, group: GroupSpec, around: Read) -> None:
        """What a supervisor would refuse later: its own checks decide, each alone, so that both can speak.

        Where a field is wrong itself, its check gets what offends least.
        """
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
            self._wrong(found, str(error).removeprefix(f"child {child.name!r}: "), field)

    def _claim_name(self, read: Read) -> None:
        if "name" in read.wrong:
            return
        first = self._names.setdefault(read.table.name, read.keys)
        if first != read.keys:
            self._wrong(read, f"the name {read.table.name!r} is taken by {path(first)}", "name")

    def _place(self, place: str | None) -> str | None:
        return None if place is None else str(self.directory / os.path.expanduser(place))

    def _wrong(self, read: Read, message: str, *keys: str | int) -> None:
        self.mistakes.append(((*read.keys, *keys), message))


def unreadable(place: str) -> str | None:
    """Why this is no file that can be read, or ``None`` if it is one."""
    try:
        if not stat.S_ISREG(os.stat(place).st_mode):
            return "not a file"
    except OSError as error:
        return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror).lower()
    return None if os.access(place, os.R_OK) else "permission denied"


def unusable(program: str) -> str | None:
    """Why this is no program that can be run, or ``None`` if it is one."""
    if not os.path.exists(program):
        return "no such file"
    if not os.path.isfile(program):
        return "not a file"
    return None if os.access(program, os.X_OK) else "not executable"
