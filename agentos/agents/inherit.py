"""Inheritance of limits and isolation: a child agent never gets more than its parent has. Pure."""

import attrs
from msgspec.structs import replace

from agentos.sandbox.policy import NETWORKS
from agentos_sdk.encoding.quantities import CpuShare, Size
from agentos_sdk.errors import PermissionDenied
from agentos_sdk.values import Limits

from .spec import AgentSpec, BadField, Isolation

DEFAULTS = Limits(
    memory=Size(512 << 20),
    max_pids=64,
    cpu_quota=CpuShare(1.0),
    cpu_weight=100,
    open_files=1024,
    file_size=Size(256 << 20),
    disk=Size(256 << 20),
    inodes=16384,
    tmp=Size(64 << 20),
)
"""Limits of a jailed agent that sets none. An agent without a jail has only the limits that are set."""

STRICTNESS: tuple[Isolation, ...] = ("none", "standard", "strict")


class ExceedsParent(BadField):
    """A child would get what its parent doesn't have."""

    error = PermissionDenied


def inherit(spec: AgentSpec, parent: AgentSpec) -> AgentSpec:
    """``spec`` as a child of ``parent``: limits are reduced to the parent's; the rest raises :class:`ExceedsParent`."""
    if not spec.jailed:
        raise ExceedsParent("isolation", "an agent without isolation is the operator's alone to start")
    if parent.jailed and NETWORKS.index(spec.network) > NETWORKS.index(parent.network):
        raise ExceedsParent("network", f"its parent {parent.name} has {parent.network}, and {spec.network} is more")
    if spec.runtime == "fast" and parent.jailed and parent.runtime != "fast":
        raise ExceedsParent("runtime", f"{parent.name} was started by exec itself, and so are its children")
    if spec.terminals and parent.jailed and not parent.terminals:
        raise ExceedsParent("terminals", f"its parent {parent.name} has no terminals")
    if parent.jailed and spec.image not in (None, parent.image):
        raise ExceedsParent("image", f"its parent {parent.name} has {parent.image or 'none'}, and a child has the same")
    if spec.user == "root" and parent.jailed and parent.user != "root":
        raise ExceedsParent("user", f"its parent {parent.name} isn't root")
    return replace(
        spec,
        isolation=max(spec.isolation, parent.isolation, key=STRICTNESS.index),
        limits=cut(spec.limits, effective(parent)),
        image=parent.image if parent.jailed else spec.image,
    )


def effective(spec: AgentSpec) -> Limits:
    """The limits in force for an agent, set or default; ``None`` means no limit."""
    if not spec.jailed:
        return spec.limits
    return Limits(**{**named(DEFAULTS), **named(spec.limits)})  # type: ignore[arg-type]


def named(limits: Limits) -> dict[str, float]:
    """The limits that are set, by name."""
    return {name: value for name, value in attrs.asdict(limits, recurse=False).items() if value is not None}


def cut(limits: Limits, bounds: Limits) -> Limits:
    """``limits`` of a jailed child, reduced to ``bounds`` where they exceed them."""
    asked, defaults = named(limits), named(DEFAULTS)
    bounded = {name: bound for name, bound in named(bounds).items() if asked.get(name, defaults[name]) > bound}
    return Limits(**{**asked, **bounded}) if bounded else limits  # type: ignore[arg-type]
