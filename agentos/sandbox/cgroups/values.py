"""Values of a cgroup: limits, limits in force, usage, evidence; and conversions between the kernel's units."""

import math
import os
import re
from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import and_, ge, gt, le, optional
from msgspec import Struct

CONTROLLERS = frozenset({"memory", "pids", "cpu"})
"""The controllers that limit something. ``freezer`` and ``cpuacct`` of version 1 only help."""

MAX_MEMORY = 1 << 62  # bytes; just below 2**63 the kernel rounds to "no limit"
MAX_PIDS = 1 << 22  # the maximum number of processes in Linux, which refuses a higher limit
MAX_CPUS = 8192.0  # the maximum number of CPUs
MIN_CPU = 0.001  # of one CPU: the kernel's shortest quota is 1 ms and its longest period 1 s
MIN_CPU_QUOTA, CPU_PERIOD, MAX_CPU_PERIOD = 1_000, 100_000, 1_000_000  # microseconds

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")  # no dot: the kernel's files contain one, or are reserved
_RESERVED_NAMES = frozenset({"self", "kernel", "tasks", "notify_on_release", "release_agent"})


class CgroupError(Exception):
    """A cgroup operation failed; the text names the file or the cgroup, and the kernel's reason."""


def validate_name(name: str) -> str:
    """Validate a cgroup name; :class:`CgroupError` if it isn't allowed."""
    if not _NAME.fullmatch(name) or name in _RESERVED_NAMES:
        raise CgroupError(f"{name!r} is not a valid cgroup name: use 1 to 128 letters, digits, _ and -")
    return name


@frozen
class Limits:
    """What a cgroup and all cgroups in it may use together; ``None`` is no limit of its own."""

    memory: int | None = field(default=None, validator=optional(and_(gt(0), le(MAX_MEMORY))))  # bytes, none swapped
    pids: int | None = field(default=None, validator=optional(gt(0)))  # processes and threads
    cpu: float | None = field(default=None, validator=optional(ge(MIN_CPU)))  # of one CPU: 0.5 is half of one
    weight: int | None = field(default=None, validator=optional(and_(ge(1), le(10_000))))  # among siblings; else 100

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that these limits need."""
        needed = {"memory": self.memory, "pids": self.pids, "cpu": self.cpu or self.weight}
        return frozenset(name for name, asked in needed.items() if asked is not None)

    def restrict_to(self, controllers: frozenset[str]) -> "Limits":
        """The part of these limits that the given controllers can enforce."""
        cpu = "cpu" in controllers
        return Limits(
            memory=self.memory if "memory" in controllers else None,
            pids=self.pids if "pids" in controllers else None,
            cpu=self.cpu if cpu else None,
            weight=self.weight if cpu else None,
        )


class CgroupEntry(Struct, frozen=True):
    """Descriptors for entering a cgroup: a directory of version 2 to be cloned into, or ``tasks`` files of version 1.

    A process enters by writing 0 to a ``tasks`` file.
    """

    directory: int | None = None
    tasks: Sequence[int] = ()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.tasks:
            os.close(fd)
        if self.directory is not None:
            os.close(self.directory)


class EnforcedLimits(Struct, frozen=True):
    """The limits that the kernel enforces on a cgroup, as read back.

    Memory is whole pages, a CPU share whole microseconds. ``swap`` is how many bytes may be swapped out beyond
    ``memory``; ``None``: no limit but the host's swap. ``sockets`` are the bytes of buffers of sockets, where they are
    counted apart: in version 2 they are part of ``memory``.
    """

    memory: int | None = None
    swap: int | None = None
    pids: int | None = None
    cpu: float | None = None
    weight: int | None = None
    sockets: int | None = None

    def describe_weaker(self, asked: Limits) -> str | None:
        """Describe the first limit that is weaker than asked; ``None`` if none is."""
        memory = asked.memory
        pids = asked.pids and min(asked.pids, MAX_PIDS)
        cpu = asked.cpu and min(asked.cpu, MAX_CPUS) * 1.001  # 0.1 % tolerance for whole microseconds
        for name, wanted, found in (("memory", memory, self.memory), ("pids", pids, self.pids), ("cpu", cpu, self.cpu)):
            if wanted is not None and (found is None or found > wanted):
                return f"{name}: the kernel enforces {found or 'no limit'}, not {getattr(asked, name)}"
        if asked.weight is not None and (self.weight is None or abs(self.weight - asked.weight) > asked.weight / 10):
            return f"weight: the kernel has {self.weight}, not {asked.weight}"
        return None


class Evidence(Struct, frozen=True):
    """The kernel's counters of a cgroup that explain how it ran and why it ended."""

    memory_limit: int | None = None  # bytes, as enforced
    pids_limit: int | None = None
    out_of_memory: bool = False  # the cgroup's own limit was reached, and processes were killed for it
    killed_above: int = 0  # processes killed for memory although the cgroup's own limit was not reached
    forks_refused: int = 0
    refused_above: bool = False  # by the limit of an enclosing cgroup
    throttled: float = 0.0  # the share of its runnable time that it was throttled: 0 to 1

    def describe(self) -> tuple[str, ...]:
        """Describe the events for people; empty if nothing happened."""
        lines = []
        if self.out_of_memory and self.memory_limit is not None:
            lines.append(f"memory limit {format_size(self.memory_limit)} reached")
        elif self.killed_above:
            lines.append("killed for memory by a limit above its own, or by the host")
        if self.forks_refused and (self.refused_above or self.pids_limit is None):
            lines.append("fork refused: the processes of a group above it were used up")
        elif self.forks_refused:
            lines.append(f"fork refused: {self.pids_limit} processes")
        if self.throttled >= 0.01:
            lines.append(f"throttled {math.floor(self.throttled * 100)} % of the time")
        return tuple(lines)


def throttled_share(throttled: float, used: float) -> float:
    """The share of its runnable time that a cgroup was throttled: it either ran or was throttled.

    Both in the same unit, summed over CPUs. So an agent that mostly sleeps isn't reported for one long period.
    """
    return throttled / (throttled + used) if throttled > 0 else 0.0


def cpu_quota(share: float) -> tuple[int, int]:
    """Convert a share of one CPU to quota and period in microseconds, never more than the share."""
    share = min(share, MAX_CPUS)
    period = (
        CPU_PERIOD if share * CPU_PERIOD >= MIN_CPU_QUOTA else min(math.ceil(MIN_CPU_QUOTA / share), MAX_CPU_PERIOD)
    )
    return max(math.floor(share * period), MIN_CPU_QUOTA), period


def shares_from_weight(weight: int) -> int:
    """Convert a version 2 weight to version 1 cpu.shares: the default is 100 there and 1024 here."""
    return max(2, weight * 1024 // 100)


def weight_from_shares(shares: int) -> int:
    """Convert version 1 cpu.shares to a version 2 weight."""
    return max(1, round(shares * 100 / 1024))


def format_size(size: int) -> str:
    """Format bytes for people: ``256M``, ``1.5G``, ``4097B``."""
    for unit, letter in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % (unit // 2) == 0:
            return f"{size // unit}{'.5' if size % unit else ''}{letter}"
    return f"{size}B"
