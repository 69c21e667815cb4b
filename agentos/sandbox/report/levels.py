"""Isolation levels: which layers each level requires, and which of these are missing. Pure.

A host is judged by what was tried on it before an agent is spawned. A spawn is judged by the record that was read back
from the kernel. Both are findings by layer, so the same rule applies.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from agentos_sdk.values import Layer

from .walls import LAYERS

WALL_LAYERS = (
    *("user_ns", "pid_ns", "mount_ns", "net_ns", "ipc_ns", "uts_ns", "cgroup_ns", "root", "own_uid", "capabilities"),
    *("no_new_privs", "seccomp", "rlimits"),
)
REQUIRED_LAYERS: Mapping[str, Collection[str]] = {
    "none": (),
    "standard": WALL_LAYERS,
    "best_effort": WALL_LAYERS,
    "strict": LAYERS,
}
"""The layers that each level requires, unless a layer doesn't apply (``asked`` is false)."""

LIMIT_LAYERS: Mapping[str, str] = {
    "memory": "memory",
    "max_pids": "pids",
    "cpu_quota": "cpu",
    "cpu_weight": "cpu",
    "open_files": "rlimits",
    "file_size": "rlimits",
    "disk": "disk",
    "inodes": "disk",
    "tmp": "root",
}
"""The layer that enforces each limit, by the limit's name on the wire."""


class Finding(Struct, frozen=True):
    """Whether a layer works; if not, what happened and what to change.

    ``asked`` is false if the layer doesn't apply: a uid of its own without root, a network namespace with the host's
    network, a cgroup namespace on a Linux that has none.
    """

    works: bool
    reason: str = ""
    remedy: str = ""
    mechanism: str = ""
    asked: bool = True


class MissingLayer(Struct, frozen=True):
    """A required layer that is missing."""

    layer: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason}" + (f" ({self.remedy})" if self.remedy else "")


def missing_layers(
    level: str,
    layers: Mapping[str, Finding],
    named: Collection[str] = (),
    waived: Collection[str] = (),
) -> Sequence[MissingLayer]:
    """Return the missing layers for a level, in the order of the layers; empty if none is missing.

    ``named`` are the limits that the caller named: they must be enforced at any level but ``none``, unless they are
    ``waived``. ``strict`` ignores waivers. A layer without a finding counts as missing.
    ``KeyError`` for an unknown level or limit.
    """
    required = set(REQUIRED_LAYERS[level])
    if required:
        required |= {LIMIT_LAYERS[limit] for limit in set(named) - set(waived)}
    found = {name: layers.get(name, Finding(False, "not tried")) for name in LAYERS if name in required}
    return [
        MissingLayer(name, finding.reason, finding.remedy)
        for name, finding in found.items()
        if finding.asked and not finding.works
    ]


def findings_of_record(record: Mapping[str, Layer]) -> Mapping[str, Finding]:
    """Convert the record of a spawn to findings."""
    return {
        name: Finding(layer.active, layer.reason, mechanism=layer.mechanism, asked=bool(layer.asked))
        for name, layer in record.items()
    }


def best_level(layers: Mapping[str, Finding]) -> str:
    """The highest level that these layers allow: ``strict``, ``standard`` or ``none``."""
    return next(level for level in ("strict", "standard", "none") if not missing_layers(level, layers))


def describe_default(layers: Mapping[str, Finding], uid: int) -> str:
    """One sentence: the isolation that an agent gets by default from a kernel with this uid, and the agent's uid."""
    if missing := missing_layers("standard", layers):
        names = _join_names([layer.layer for layer in missing])
        return f"none: {names} not available: no agent can start in a sandbox"
    landlock = layers["landlock"]
    landlock_text = f"Landlock {landlock.mechanism}" if landlock.works else "no Landlock"
    uids = "a uid for each agent" if layers["own_uid"].works else f"agents run as uid {uid}"
    return f"standard: all walls; {_describe_limits(layers)}; {landlock_text}; {uids}"


def describe_strict(layers: Mapping[str, Finding]) -> str:
    """Say whether ``strict`` is available, or which layers are missing."""
    missing = missing_layers("strict", layers)
    return (
        f"strict: no: {_join_names([lack.layer for lack in missing])} missing" if missing else "strict: available too"
    )


def _describe_limits(layers: Mapping[str, Finding]) -> str:
    found = {name: layers[name] for name in ("memory", "pids", "cpu")}
    grouped = [name for name, one in found.items() if one.mechanism.startswith("cgroup")]
    rlimited = [name for name, one in found.items() if one.works and name not in grouped]
    by = [f"limits by {found[grouped[0]].mechanism}" if grouped else "limits by rlimits"]
    by += [f"{' and '.join(rlimited)} by rlimits"] if grouped and rlimited else []
    return ", ".join([*by, *(f"{name} not limited" for name, one in found.items() if not one.works)])


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
