"""Record which limits are enforced on a program and how, and which limit ended it; from values read back."""

import signal
from collections.abc import Mapping, Sequence

import attrs
from msgspec import Struct
from msgspec.structs import replace

from agentos.sandbox.cgroups.discover import MissingLimit
from agentos.sandbox.cgroups.values import EnforcedLimits, Evidence, format_size
from agentos.sandbox.cgroups.values import Limits as CgroupLimits
from agentos.sandbox.policy import Limits
from agentos.sandbox.status import Status
from agentos.sandbox.watch import disk, memory
from agentos.sandbox.watch.disk import Image, Tmpfs
from agentos.sandbox.watch.tree_usage import Usage
from agentos_sdk.values import Layer

SHIM_PROCESSES = 1  # one process of ours, on top of the agent's max_pids
CPU_PERIOD = 100_000  # microseconds: the period of ``cpu_quota``
INODE_ROUNDING = 1 << 20  # bytes of an ext4 per inode that mkfs may add, to fill the blocks of its inode tables
NO_CGROUP_REASONS = {
    "memory": "no cgroup delegated, and no watcher for its memory",
    "pids": "no cgroup delegated, and no limit on processes is in force",
    "cpu": "no cgroup delegated: CPU shares can't be limited",
}
_CGROUP_FILES = {  # by version
    1: ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us", "cpu.shares"),
    2: ("memory.max", "pids.max", "cpu.max", "cpu.weight"),
}


class ObservedLimits(Struct, frozen=True):
    """Limits read back before the program's first instruction, or enforced from outside."""

    enforced: EnforcedLimits | None = None  # of its cgroup
    version: int | None = None  # of its cgroup
    missing: Sequence[MissingLimit] = ()  # limits that cgroups can't enforce here
    rlimits: Mapping[str, tuple[str, str]] = {}  # /proc/PID/limits by its first column
    watched: bool = False  # whether its memory is watched
    workspace: Tmpfs | Image | Usage | None = None  # a Usage is that of a watched directory at the start


def limit_layers(asked: Limits, observed: ObservedLimits) -> dict[str, Layer]:
    """The layers ``memory``, ``pids``, ``cpu`` and ``disk``."""
    return {
        "memory": _memory_layer(asked, observed),
        "pids": _pids_layer(asked, observed),
        "cpu": _cpu_layer(asked, observed),
        "disk": _disk_layer(asked, observed),
    }


def _memory_layer(asked: Limits, observed: ObservedLimits) -> Layer:
    enforced = observed.enforced
    if enforced is not None and enforced.memory is not None:
        file, *_ = _CGROUP_FILES[observed.version or 2]
        weaker = enforced.describe_weaker(CgroupLimits(memory=asked.memory))
        swap = "" if enforced.swap is None else f" swap={enforced.swap}"
        reason = weaker or (
            "" if enforced.swap == 0 else "swapped memory comes on top of it: swap can't be limited here"
        )
        sockets = "" if enforced.sockets is None else f" kmem.tcp.limit_in_bytes={enforced.sockets}"
        if not reason and observed.version == 1 and enforced.sockets is None:
            reason = "buffers of sockets come on top of it: they can't be limited here"
        evidence = f"{file}={enforced.memory}{swap}{sockets}"
        return Layer(asked.memory, weaker is None, _cgroup_mechanism(observed, file), evidence, reason)
    each = _hard_rlimit(observed, "Max data size")
    if observed.watched and each is not None and each <= asked.data:
        interval = f"{memory.MIN_INTERVAL:g} to {memory.IDLE_INTERVAL:g} s"
        evidence = f"Max data size={each} of each process; looked at every {interval}"
        reason = f"watched, may overshoot; not counted: {memory.UNCOUNTED}"
        return Layer(asked.memory, True, "watcher + RLIMIT_DATA", evidence, reason)
    return _missing_layer("memory", asked.memory, observed)


def _pids_layer(asked: Limits, observed: ObservedLimits) -> Layer:
    enforced = observed.enforced
    if enforced is not None and enforced.pids is not None:
        weaker = enforced.describe_weaker(CgroupLimits(pids=asked.max_pids + SHIM_PROCESSES))
        return Layer(
            asked.max_pids,
            weaker is None,
            _cgroup_mechanism(observed, "pids.max"),
            f"pids.max={enforced.pids}",
            weaker or "",
        )
    each = _hard_rlimit(observed, "Max processes")
    if each is not None and each <= asked.max_pids + SHIM_PROCESSES:
        why = "agents that it spawns have their own separate limits"
        mechanism = "RLIMIT_NPROC in a user namespace of its own"
        return Layer(asked.max_pids, True, mechanism, f"Max processes={each}", why)
    return _missing_layer("pids", asked.max_pids, observed)


def _cpu_layer(asked: Limits, observed: ObservedLimits) -> Layer:
    enforced = observed.enforced
    if enforced is None or enforced.cpu is None:
        return _missing_layer("cpu", asked.cpu_quota, observed)
    _, _, quota, weight = _CGROUP_FILES[observed.version or 2]
    weaker = enforced.describe_weaker(CgroupLimits(cpu=asked.cpu_quota / CPU_PERIOD, weight=asked.cpu_weight))
    evidence = f"{quota}: {enforced.cpu * 100:g} % of a CPU, {weight}: weight {enforced.weight}"
    return Layer(asked.cpu_quota, weaker is None, _cgroup_mechanism(observed, quota), evidence, weaker or "")


def _disk_layer(asked: Limits, observed: ObservedLimits) -> Layer:
    match observed.workspace:
        case None:
            return Layer(asked.disk, False, "", "", "its workspace has no limit")
        case Usage() as usage:
            looks = f"bytes and inodes counted every {disk.MIN_INTERVAL:g} to {disk.MAX_INTERVAL:g} s"
            evidence = f"{usage} at the start; {looks}, limit {format_size(asked.disk)} and {asked.inodes} inodes"
            reason = "watched, may overshoot: between two counts any number of bytes and files can be written"
            return Layer(asked.disk, True, "watched", evidence, reason)
        case Tmpfs(options=options) as mount:
            mechanism = ",".join(one for one in options.split(",") if one.startswith(("size=", "nr_inodes=")))
            return _sized_layer(asked, f"tmpfs {mechanism}", options, mount.size, mount.inodes)
        case Image(size, inodes):
            rounded = attrs.evolve(asked, inodes=asked.inodes + asked.disk // INODE_ROUNDING + 16)
            layer = _sized_layer(rounded, "loop image", f"statfs: {size} bytes, {inodes} inodes", size, inodes)
            if layer.active and inodes > asked.inodes:
                return attrs.evolve(layer, reason=f"ext4 has rounded {asked.inodes} inodes up to {inodes}")
            return layer


def _sized_layer(asked: Limits, mechanism: str, evidence: str, size: int | None, inodes: int | None) -> Layer:
    wrong = [
        f"{name}: the kernel enforces {found or 'no limit'}, not {wanted}"
        for name, found, wanted in (("disk", size, _round_to_pages(asked.disk)), ("inodes", inodes, asked.inodes))
        if not found or found > wanted
    ]
    return Layer(asked.disk, not wrong, mechanism, evidence, "; ".join(wrong))


def _round_to_pages(size: int) -> int:
    """Round a size up to whole pages, as the kernel does."""
    return -(-size // 4096) * 4096


def _missing_layer(limit: str, amount: int, observed: ObservedLimits) -> Layer:
    missing = next((one for one in observed.missing if one.limit == limit), None)
    reason = NO_CGROUP_REASONS[limit] + (f" ({missing.reason}); {missing.remedy}" if missing is not None else "")
    return Layer(amount, False, "", "", reason)


def _cgroup_mechanism(observed: ObservedLimits, file: str) -> str:
    return f"cgroup v{observed.version} {file}"


def _hard_rlimit(observed: ObservedLimits, line: str) -> int | None:
    """The hard limit: the program can't raise it."""
    _, hard = observed.rlimits.get(line, ("?", "?"))
    return int(hard) if hard.isdecimal() else None


def describe_ending(
    status: Status,
    asked: Limits,
    cgroup: Evidence | None = None,
    watched: object | None = None,
) -> str | None:
    """Describe which limits a program reached; ``None`` if the evidence names none.

    Where RLIMIT_NPROC limits the processes, refused forks aren't counted and not reported.
    """
    if watched is not None:
        return f"killed: {watched}"
    if status.signal == signal.SIGXFSZ:
        return f"killed: limit {format_size(asked.file_size)} of one file reached"
    if cgroup is None:
        return None
    if not cgroup.refused_above and cgroup.pids_limit == asked.max_pids + SHIM_PROCESSES:
        cgroup = replace(cgroup, pids_limit=asked.max_pids)
    first, *rest = cgroup.describe() or ("",)
    if cgroup.out_of_memory and cgroup.memory_limit is not None:
        first = f"killed: {first}" if _was_killed(status) else f"{first}: processes of it were killed"
    return "; ".join((first, *rest)) or None


def _was_killed(status: Status) -> bool:
    return status.signal == 9 or status.code == 128 + 9
