"""The limits of a jail's cgroup: at its start, and changed while the program runs."""

from collections.abc import Collection, Sequence

from attrs import evolve

from agentos.agents.inherit import effective
from agentos.agents.spec import AgentSpec
from agentos.sandbox.cgroups.discover import Group, MissingLimit
from agentos.sandbox.cgroups.values import MAX_MEMORY, MIN_CPU
from agentos.sandbox.cgroups.values import Limits as GroupLimits
from agentos.sandbox.policy import BadPolicy
from agentos.sandbox.report.limits import SHIM_PROCESSES, ObservedLimits, limit_layers

from . import layout
from .isolation_report import Layers, unjailed
from .jail import Jail

LIMITS = {"pids": ("max_pids",), "cpu": ("cpu_quota", "cpu_weight")}  # by controller; memory has a watcher without one
LAYERS = ("memory", "pids", "cpu")


def group_limits(spec: AgentSpec) -> GroupLimits:
    """The limits of an agent's cgroup."""
    asked = effective(spec)
    if asked.cpu_quota is not None and asked.cpu_quota < MIN_CPU:
        raise BadPolicy(f"limits.cpu_quota: the least that Linux can give is {MIN_CPU * 100:g}% of a CPU")
    return GroupLimits(
        memory=min(asked.memory, MAX_MEMORY) if asked.memory is not None else None,
        pids=asked.max_pids + (SHIM_PROCESSES if spec.jailed else 0) if asked.max_pids is not None else None,
        cpu=asked.cpu_quota,
        weight=asked.cpu_weight,
    )


def list_live_limits(root: Group | None) -> Collection[str]:
    """The limits that can be changed while a program runs, in cgroups below ``root``."""
    controllers = root.controllers if root is not None else ()
    return {"memory", *(name for found in controllers for name in LIMITS.get(found, ()))}


def can_change(jail: Jail, spec: AgentSpec) -> bool:
    """Whether the limits of a running program can become those of its spec."""
    if jail.group is not None and "memory" in jail.group.controllers:
        return True
    # The watcher's figure can. But the limit of each process is twice the limit at the start, for good.
    policy = jail.parts.policy
    return policy is not None and layout.limits(spec).memory <= policy.limits.data


def change_limits(jail: Jail, spec: AgentSpec, missing: Sequence[MissingLimit]) -> Layers:
    """Give a jail's cgroup the limits of the spec; returns the layers that are in force then. Blocks.

    Raises :class:`~agentos.sandbox.cgroups.values.CgroupError` or ``BadPolicy``.
    """
    asked = layout.limits(spec)
    if jail.group is None:
        return {**jail.layers, "memory": evolve(jail.layers["memory"], asked=asked.memory)}
    jail.group.change_limits(group_limits(spec).restrict_to(jail.group.controllers))
    observed = ObservedLimits(jail.group.read_limits(), jail.group.version, missing)
    found = limit_layers(asked, observed) if spec.jailed else unjailed(spec, observed.enforced, observed.version)
    layers = {name: found[name] for name in LAYERS if name in jail.group.controllers}
    if spec.jailed and "memory" not in layers:
        layers["memory"] = evolve(jail.layers["memory"], asked=asked.memory)
    return {**jail.layers, **layers}
