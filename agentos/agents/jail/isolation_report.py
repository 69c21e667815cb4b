"""Isolation report: which layers were requested, which are in force, and whether they meet the isolation level."""

import os
from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from agentos.agents.inherit import named
from agentos.agents.spec import AgentSpec
from agentos.agents.workspaces.workspace import Workspace
from agentos.sandbox.cgroups.discover import Group, MissingLimit
from agentos.sandbox.cgroups.values import EnforcedLimits
from agentos.sandbox.policy import Limits
from agentos.sandbox.report import levels, walls
from agentos.sandbox.report.limits import ObservedLimits, limit_layers
from agentos.sandbox.report.walls import Observed
from agentos.sandbox.steps import Step
from agentos.sandbox.watch import disk
from agentos.sandbox.watch.tree_usage import Usage, measure_tree
from agentos_sdk.values import Layer

NO_LIMIT = "no such limit was asked for"
Layers = Mapping[str, Layer]


class NotIsolated(Exception):
    """An agent can't have the isolation it requires; the text says what is missing and what to change."""


@frozen
class Walls:
    """A sandbox during its start, with all sources of its isolation record."""

    spec: AgentSpec
    limits: Limits
    steps: Sequence[Step]
    group: Group | None
    missing: Sequence[MissingLimit]
    watched: bool  # whether the memory watcher enforces its memory limit
    workspace: Workspace | None

    @property
    def blocks(self) -> bool:
        """Whether :meth:`record` reads a disk: otherwise only /proc and cgroup files, which are in memory."""
        return self.workspace is not None and self.workspace.kind != "tmp"

    def record(self, observed: Observed, program: int) -> Layers:
        """All layers in force, read from the Linux kernel before the program's first instruction. May block."""
        layers = walls.isolation_layers(self.steps, observed)
        found = ObservedLimits(
            enforced=self.group.enforced if self.group is not None else None,
            version=self.group.version if self.group is not None else None,
            missing=self.missing,
            rlimits=observed.limits,
            watched=self.watched,
            workspace=self._usage(program),
        )
        if self.spec.jailed:
            limits: Layers = limit_layers(self.limits, found)
        else:
            limits = unjailed(self.spec, found.enforced, found.version)
        if self.workspace is not None and self.workspace.kind == "overlay":
            layers["overlay"] = walls.overlay_layer(program)
        if self.spec.jailed and self.spec.terminals:
            layers["terminals"] = walls.terminals_layer(program)
        if self.spec.user == "root":
            layers["user"] = walls.user_layer(program)
        if self.spec.image is not None:
            layers["image"] = walls.image_layer(program, read_only=self.spec.isolation == "strict")
        return {**layers, **limits}

    def _usage(self, program: int) -> disk.Tmpfs | disk.Image | Usage | None:
        if self.workspace is None:
            return None
        if self.workspace.kind == "tmp":
            return disk.read_tmpfs(program)
        place = self.workspace.watched or f"/proc/{program}/root/workspace"
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self.workspace.kind == "image":
                return disk.read_image(directory)
            usage = measure_tree(directory, self.limits.disk, self.limits.inodes)
            if (over := disk.exceeded_limit(usage, self.limits.disk, self.limits.inodes)) is not None:
                raise NotIsolated(f"{over} already: make room in {place}, or give it a higher limit")
            return usage
        finally:
            os.close(directory)


def unjailed(spec: AgentSpec, in_force: EnforcedLimits | None, version: int | None) -> Layers:
    """The limits of an agent without a jail: those that were set, if a cgroup enforces them."""
    asked = {"memory": spec.limits.memory, "pids": spec.limits.max_pids, "cpu": spec.limits.cpu_quota}
    layers: dict[str, Layer] = {}
    for name, amount in asked.items():
        value = getattr(in_force, name) if in_force is not None else None
        active = amount is not None and value is not None
        layers[name] = Layer(
            amount if amount is not None else False,
            active,
            f"cgroup v{version}" if active else "",
            f"{name}={value}" if active else "",
            "" if active else "no cgroup delegated" if amount is not None else NO_LIMIT,
        )
    reason = "without a jail nothing bounds what it writes" if spec.limits.disk else NO_LIMIT
    return {**layers, "disk": Layer(spec.limits.disk or False, False, reason=reason)}


def describe_no_overlay(finding: levels.Finding) -> str:
    """Why no workspace can be an overlay, and what to do."""
    remedy = f"{finding.remedy}, or " if finding.remedy else ""
    what = f"workspace: mode overlay can't be had here: {finding.reason}"
    return f'{what}: {remedy}say mode = "direct" (`agentos task`: --in-place)'


def lacking(layers: Layers) -> Sequence[str]:
    """The layers that were requested and are not in force."""
    return tuple(name for name, layer in layers.items() if layer.asked and not layer.active)


def judge(spec: AgentSpec, layers: Layers, waived: Collection[str]) -> None:
    """Raise :class:`NotIsolated` if less is in force than the agent's level, or a limit that was set, requires."""
    lacking: Sequence[object] = levels.missing_layers(
        spec.isolation, levels.findings_of_record(layers), named(spec.limits), waived
    )
    if not spec.jailed:
        by_layer = {levels.LIMIT_LAYERS[name]: name for name in named(spec.limits) if name not in waived}
        lacking = [
            f"{by_layer[name]}: {layer.reason}"
            for name, layer in layers.items()
            if name in by_layer and not layer.active and name != "root"
        ]
    if not lacking and "overlay" in layers and not layers["overlay"].active:
        raise NotIsolated(describe_no_overlay(levels.Finding(False, layers["overlay"].reason)))
    if not lacking and "terminals" in layers and not layers["terminals"].active:
        raise NotIsolated(f"terminals: {layers['terminals'].reason}: {layers['terminals'].evidence}")
    if not lacking and "user" in layers and not layers["user"].active:
        raise NotIsolated(f"user root: {layers['user'].reason}: {layers['user'].evidence}")
    if not lacking and "image" in layers and not layers["image"].active:
        raise NotIsolated(f"image {spec.image}: {layers['image'].reason}")
    if lacking:
        what = "; ".join(map(str, lacking))
        waivable = ", ".join(
            f'"{name}"' for name in sorted(named(spec.limits)) if not layers[levels.LIMIT_LAYERS[name]].active
        )
        waiver = f", and waive = [{waivable}] under [kernel] lets it run without" if waivable else ""
        raise NotIsolated(f"isolation {spec.isolation} can't be had here: {what}. `agentos doctor` tells more{waiver}")
