"""Configuration builder: converts the file's tables to specs and settings and collects all mistakes."""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from msgspec.structs import replace

from agentos.agents.builder import (
    Request,
    build,
    build_backoff,
    build_share,
    check_intensity,
    check_restart_limits,
    report_spec_error,
)
from agentos.agents.paths import HostPaths
from agentos.agents.spec import AgentSpec, BadField, GroupSpec
from agentos.config.schema import (
    AgentTable,
    ApprovalTable,
    DashboardTable,
    FileTable,
    KernelSettings,
    NotifyTable,
    RecordingTable,
    RootTable,
    StorageTable,
    SupervisorTable,
    WorkspaceTable,
)
from agentos.config.tables.http import HttpTable, read_http
from agentos.config.tables.llm import LLMTable, check_prices, read_llm
from agentos.config.tables.permissions import read_agent_permissions, read_permissions
from agentos.config.tables.telemetry import MetricsTable, read_metrics, read_otel
from agentos.kernel.wire.listener import MAX_PATH_BYTES
from agentos.llm.settings import LLMSettings
from agentos.mcp.settings import ServerSettings
from agentos.permissions.approvals.approvals import ApprovalSettings
from agentos.permissions.rule import PermissionSet
from agentos.presets import BadPreset, check_place, read_preset, user_directories
from agentos.recordings.masks import BadMask, read_masks
from agentos.services.http.secrets import SecretSettings
from agentos.services.http.settings import HttpSettings
from agentos.services.logs.log import LogSettings
from agentos.services.quotas import Quota
from agentos.telemetry.settings import MetricsSettings, OtelSettings
from agentos_sdk.encoding.codec import path
from agentos_sdk.values import Limits
from supervisors import Backoff, ChildSpec, SupervisorSpec

from .reader import Reader, ReadTable
from .start_order import find_order_mistakes
from .tables.dashboard import DashboardSettings, read_dashboard
from .tables.mcp import McpTable, read_mcp
from .toml_lines import Keys
from .waiting import find_waiting_mistakes

ROOT = "root"
LOG_FILES = 4  # files that `max_total` has room for at least

RESTART_LIMITS = {"backoff": Backoff(first=1.0, min=2.0, max=30.0), "max_restarts": 5, "restart_window": 60.0}
"""The defaults of a child of a ``one_for_one`` supervisor: 5 restarts in 60 s, after 1 s, 2 s, 4 s, ... up to 30 s."""
GROUP_KEYS = {"max_restarts": "intensity", "restart_window": "period", "on_give_up": "on_give_up"}
"""What a member of another supervisor can't have by itself, and the supervisor's key for it."""
INTENSITY_KEYS = {"restart", "intensity", "period"}
NO_SUPERVISOR = "the root has no supervisor above it: when it gives up, the kernel ends with exit status 1"
CHILDS = "a key of a child: each of [[agents]] has its own"
TWICE = "[[supervisor.children]] stand in this file, too: write all of them as [[agents]], or none"


def read_limits(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a child, with ``max_restarts`` as a number."""
    return {**fields, "max_restarts": math.inf} if fields.get("max_restarts") == "unlimited" else fields


PLACES = {
    "kernel": KernelSettings,
    "logs": LogSettings,
    "storage": StorageTable,
    "recording": RecordingTable,
    "approvals": ApprovalTable,
    "notify": NotifyTable,
    "dashboard": DashboardTable,
    "llm": LLMTable,
    "http": HttpTable,
    "mcp": McpTable,
    "metrics": MetricsTable,
    "otel": OtelSettings,
    "supervisor": RootTable,
}


def describe_misplaced(keys: Keys, message: str) -> str:
    """The message for an unknown key at the top of the file, with the table that the key belongs into, if any."""
    name = keys[0] if message.startswith("unknown field") else ""
    if name in ("agent", "children") or name in attrs.fields_dict(AgentTable):
        return "unknown field: each agent is a table [[agents]], with a name and all that is the agent's"
    for table, cls in PLACES.items():
        if name in attrs.fields_dict(cls):
            return f"unknown field, did you mean {table}.{name}?"
    return message


def children_of(read: ReadTable) -> Sequence[tuple[Keys, object]]:
    """The children of a supervisor's table, with their keys."""
    return [((*read.keys, "children", index), data) for index, data in enumerate(read.table.children)]


class Builder(Reader):
    """Reads one file's data."""

    def __init__(self, directory: Path, settled: Collection[str | None] = ()) -> None:
        super().__init__(directory, settled)
        self._names: dict[str, Keys] = {}
        self._presets: list[tuple[ReadTable, str]] = []
        self._budgets: list[tuple[Keys, Sequence[Quota]]] = []
        self._sets: Mapping[str, PermissionSet] = {}
        self.logs = LogSettings()
        self.storage = StorageTable()
        self.recording = RecordingTable()
        self.http = HttpSettings()
        self.metrics = MetricsSettings()
        self.otel = OtelSettings()
        self.approvals = ApprovalSettings()
        self.notify = NotifyTable()
        self.dashboard: DashboardSettings | None = None
        self._llm = LLMSettings()
        self._image: str | None = None  # the default of agents
        self.mcp: Mapping[str, ServerSettings] = {}

    def build(self, data: object) -> tuple[KernelSettings, LLMSettings, Mapping[str, PermissionSet], GroupSpec]:
        """The kernel's settings, the model's settings, the permission sets, and the root of the tree."""
        file = self.read(FileTable, data, ()).table
        self.mistakes = [(keys, describe_misplaced(keys, message)) for keys, message in self.mistakes]
        kernel = self.read(KernelSettings, file.kernel, ("kernel",)).table
        self._image = kernel.image
        paths = {name: self._resolve_kernel_path(name, getattr(kernel, name)) for name in ("socket", "state_dir")}
        self.logs = self._read_logs(self.read(LogSettings, file.logs, ("logs",)))
        self.storage = self.read(StorageTable, file.storage, ("storage",)).table
        self.recording = self._read_recording(self.read(RecordingTable, file.recording, ("recording",)))
        self.http = read_http(self, file.http)
        self.dashboard = read_dashboard(self, file.dashboard)
        self.metrics = read_metrics(self, file.metrics)
        self.otel = read_otel(self, file.otel)
        self.approvals = self._read_approvals(self.read(ApprovalTable, file.approvals, ("approvals",)))
        self.notify = self.read(NotifyTable, file.notify, ("notify",)).table
        root = self.read(RootTable, self._drop_keys_of_children(file.supervisor), ("supervisor",))
        self._sets = read_permissions(self, file.permissions, self._secrets)
        self.mcp = read_mcp(self, file.mcp, self._sets, self._secrets)
        self._budgets += [(("permissions", name, "quotas"), found.quotas) for name, found in self._sets.items()]
        self._llm = llm = read_llm(self, file.llm)
        group = self._group(root, ROOT, self._root_children(root, file.agents))
        self._check_presets(group)
        check_prices(self, llm, self._budgets)
        for child, index, message in find_order_mistakes(group):
            if child in self._names:
                self.mistakes.append(((*self._names[child], "after", index), message))
        return attrs.evolve(kernel, **paths), llm, self._sets, group

    def _resolve_kernel_path(self, name: str, given: str | None) -> str | None:
        found = self.resolve_path(given)
        if given == "":
            self.mistakes.append((("kernel", name), "expected a path, got an empty one: leave it out for the default"))
        elif found is not None and name == "socket" and (size := len(os.fsencode(found))) > MAX_PATH_BYTES:
            message = f"expected a path of at most {MAX_PATH_BYTES} bytes, which is all that Linux takes, got {size}"
            self.mistakes.append((("kernel", name), message))
        return found

    @property
    def _secrets(self) -> Mapping[str, SecretSettings]:
        return {secret.name: secret for secret in self.http.secrets}

    def _read_logs(self, read: ReadTable) -> LogSettings:
        settings: LogSettings = read.table
        if settings.max_total < LOG_FILES * settings.max_file_size and not read.invalid:
            least = f"at least {LOG_FILES} times max_file_size, which is {settings.max_file_size:,} bytes"
            self.add_mistake(read, f"expected {least}, got {settings.max_total:,} bytes", "max_total")
        return settings

    def _read_recording(self, read: ReadTable) -> RecordingTable:
        table: RecordingTable = read.table
        try:
            read_masks(table.masks, "a mask")
        except BadMask as error:
            self.add_mistake(read, str(error), "masks")
        return table

    def _read_approvals(self, read: ReadTable) -> ApprovalSettings:
        settings = ApprovalSettings(**read.present_fields())
        if settings.timeout > settings.keep and not read.invalid:
            which = "timeout" if read.table.timeout is not None else "keep"
            fix = f"set timeout to at most {settings.keep:g}s, or keep to at least {settings.timeout:g}s"
            self.add_mistake(read, f"a call can't wait longer than its entry is kept: {fix}", which)
        return settings

    def _drop_keys_of_children(self, data: object) -> object:
        """The root's table without the keys that only a child has, each reported as a mistake."""
        if not isinstance(data, dict):
            return data
        keys = (attrs.fields_dict(AgentTable).keys() - attrs.fields_dict(RootTable).keys()) & data.keys()
        for key in keys:
            self.mistakes.append((("supervisor", key), NO_SUPERVISOR if key == "on_give_up" else CHILDS))
        return {key: value for key, value in data.items() if key not in keys}

    def _root_children(self, root: ReadTable, agents: Sequence[object]) -> Sequence[tuple[Keys, object]]:
        """The children of the root, with their keys: those of ``[[agents]]``, or of ``[[supervisor.children]]``."""
        if agents and root.table.children:
            self.mistakes.append((("agents",), TWICE))
        return [*((("agents", index), data) for index, data in enumerate(agents)), *children_of(root)]

    def _group(self, read: ReadTable, name: str, listed: Sequence[tuple[Keys, object]]) -> GroupSpec:
        report = partial(self.report, read)
        given = read_limits(read.present_fields("type", "children", "backoff", "name", "llm"))
        if isinstance(read.table, SupervisorTable):
            given["backoff"] = build_backoff(read.table.backoff, report)
            given["llm"] = build_share(read.table.llm, report)
        group = GroupSpec(name=name, **given)
        children = []
        for keys, data in listed:
            child = self._child(data, keys)
            if child is not None:
                spec, found = child
                if group.strategy == "one_for_one":
                    missing = {key: limit for key, limit in RESTART_LIMITS.items() if getattr(found.table, key) is None}
                    spec = replace(spec, **missing)
                self._check_terms(spec, found, group, read)
                children.append(spec)
        return replace(group, children=tuple(children))

    def _child(self, data: object, keys: Keys) -> tuple[AgentSpec | GroupSpec, ReadTable] | None:
        kind = data.get("type", "agent") if isinstance(data, dict) else "agent"
        if kind not in ("agent", "supervisor"):
            # The intended type is unknown, so its other fields can't be checked.
            self.read(AgentTable, {"name": "nameless", "type": kind}, keys)
            return None
        read = self.read(SupervisorTable if kind == "supervisor" else AgentTable, data, keys)
        if not isinstance(data, dict):
            return None
        self._claim_name(read)
        spec = self._group(read, read.table.name, children_of(read)) if kind == "supervisor" else self._agent(read)
        self._budgets.append(((*read.keys, "llm", "budget"), spec.llm.budget))
        return spec, read

    def _agent(self, read: ReadTable) -> AgentSpec:
        def report(mistake: BadField) -> None:
            if mistake.field != "script" or not read.invalid & {"command", "image"}:  # an invalid one counts as given
                self.report(read, mistake)

        fields = read_limits(read.present_fields("type", "framework"))
        if read.table.framework is not None:
            fields |= self._preset(read, read.table.framework, fields)
        if fields.keys() & {"schedule", "start"}:
            fields.setdefault("restart", "transient")
        if isinstance(place := read.table.workspace, WorkspaceTable):
            fields |= {"workspace": place.path, "workspace_mode": place.mode}
        if fields.get("isolation") != "none" and fields.get("sandboxed") is not False:
            fields.setdefault("image", self._image)
        fields["image"] = fields.get("image") or None  # "": none, whatever the default is
        request = Request(**{"mailbox": "kept", **fields, "permissions": self._permissions(read)})
        return build(request, HostPaths(str(self.directory), declared=True), report)

    def _preset(self, read: ReadTable, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the preset ``name`` adds to the fields that are given, which win."""
        self._presets.append((read, name))
        try:
            preset = read_preset(name, user_directories(self.directory))
        except BadPreset as error:
            self.add_mistake(read, str(error), "framework")
            return {}
        for lacks, key in (
            (preset.endpoint and not self._llm.openai_endpoint, "openai_endpoint = true"),
            (preset.needs_model and self._llm.model is None, 'model = "…"'),
        ):
            if lacks:
                self.add_mistake(read, f"{preset.about} needs [llm] {key}", "framework")
        limits = given.get("limits", Limits())
        memory = preset.bytes if limits.memory is None else limits.memory
        env = {**preset.environment(self._llm.model or "", memory), **given.get("env", {})}
        fields = {"env": env, "limits": attrs.evolve(limits, memory=memory)}
        if "none" not in (given.get("isolation"), "none" if given.get("sandboxed") is False else ""):
            fields["terminals"] = given.get("terminals", preset.terminals)
        if given.get("command") or preset.files:
            try:
                fields["command"] = preset.command(given.get("command") or (), self._llm.model or "")
            except BadPreset as error:
                self.add_mistake(read, str(error), "framework")
        return fields

    def _check_presets(self, root: GroupSpec) -> None:
        """Refuse presets that an agent could write."""
        places = [spec.workspace for spec in root.agents() if os.path.isabs(spec.workspace)]
        for read, name in self._presets:
            try:
                check_place(name, user_directories(self.directory), places)
            except BadPreset as error:
                self.add_mistake(read, str(error), "framework")

    def _permissions(self, read: ReadTable) -> PermissionSet | None:
        table = read.table
        given = read_agent_permissions(self, table.permissions, table.name, self._sets, read.keys, self._secrets)
        if given is not None and given not in self._sets.values():
            self._budgets.append(((*read.keys, "permissions", "quotas"), given.quotas))
        return given

    def _check_terms(self, child: AgentSpec | GroupSpec, read: ReadTable, group: GroupSpec, outer: ReadTable) -> None:
        """Report what a supervisor would refuse later. Its own checks decide, run separately to report all.

        ``outer`` is the table of the group. Instead of an invalid field the check gets the most permissive value.
        """
        report, contained = partial(self.report, read), group.strategy == "one_for_one"
        for key, own in GROUP_KEYS.items():
            if getattr(read.table, key) is not None and not contained and "strategy" not in outer.invalid:
                instead = f"use {own} of the supervisor {group.name!r} instead"
                if key == "on_give_up" and not isinstance(outer.table, SupervisorTable):
                    instead = "when the root gives up, the kernel ends with exit status 1"
                together = f"members of a {group.strategy} supervisor are restarted and given up together"
                self.add_mistake(read, f"{together}: {instead}", key)
        if child.after and not contained and "strategy" not in outer.invalid:
            order = f"members of a {group.strategy} supervisor start in the order of the file: leave it out"
            self.add_mistake(read, order, "after")
        if isinstance(child, AgentSpec) and read.table.start_timeout is not None and not child.required:
            self.add_mistake(read, "only an agent with required = true has one: leave it out", "start_timeout")
        if isinstance(child, AgentSpec) and "strategy" not in outer.invalid:
            for key, message in find_waiting_mistakes(child, group):
                self.report(read, BadField(key, message))
        if child.significant and not (isinstance(child, AgentSpec) and child.waits):
            restart = "transient" if "restart" in read.invalid else child.restart
            auto_shutdown = "any_significant" if "auto_shutdown" in outer.invalid else group.auto_shutdown
            with report_spec_error("significant", report, child.name):
                one = ChildSpec(child.name, SupervisorSpec(), restart=restart, significant=True)
                SupervisorSpec([one], auto_shutdown=auto_shutdown)
        if contained and not read.invalid & {"restart", *RESTART_LIMITS}:
            given = [key for key in RESTART_LIMITS if getattr(read.table, key) is not None]
            check_restart_limits(child, report, given[0] if given else "backoff")
        elif not contained and child.backoff and not (read.invalid | outer.invalid) & INTENSITY_KEYS:
            check_intensity(child, group.intensity, group.period, report)

    def _claim_name(self, read: ReadTable) -> None:
        if "name" in read.invalid:
            return
        first = self._names.setdefault(read.table.name, read.keys)
        if first != read.keys:
            self.add_mistake(read, f"the name {read.table.name!r} is taken by {path(first)}", "name")
