"""Record which limits are enforced on a program and how, and which limit ended it; from values read back."""

from collections.abc import Mapping, Sequence

import attrs
from attrs import frozen

from agentos.sandbox.cgroups.discover import MissingLimit
from agentos.sandbox.cgroups.values import EnforcedLimits, Evidence, format_size
from agentos.sandbox.cgroups.values import Limits as CgroupLimits
from agentos.sandbox.policy import Limits
from agentos.sandbox.status import Status
from agentos.sandbox.watch import disk, memory
from agentos.sandbox.watch.disk import Image, Tmpfs
from agentos.sandbox.watch.tree_usage import Usage

from .walls import Layer

SHIM = 1  # one process of ours, on top of the agent's max_pids
PERIOD = 100_000  # microseconds: the period of ``cpu_quota``
INODE_ROUNDING = 1 << 20  # bytes of an ext4 per inode that mkfs may add, to fill the blocks of its inode tables
NOT_DELEGATED = {
    "memory": "no cgroup delegated, and nobody watches its memory",
    "pids": "no cgroup delegated, and no limit on processes is in force",
    "cpu": "no cgroup delegated: CPU shares can't be had",
}
_FILES = {  # by version
    1: ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us", "cpu.shares"),
    2: ("memory.max", "pids.max", "cpu.max", "cpu.weight"),
}


@frozen
class Found:
    """Limits read back before the program's first instruction, or enforced from outside."""

    enforced: EnforcedLimits | None = None  # of its cgroup
    version: int | None = None  # of its cgroup
    missing: Sequence[MissingLimit] = ()  # limits that cgroups can't enforce here
    rlimits: Mapping[str, tuple[str, str]] = attrs.field(factory=dict)  # /proc/PID/limits by its first column
    watched: bool = False  # whether its memory is watched
    workspace: Tmpfs | Image | Usage | None = None  # a Usage is that of a watched directory at the start


def limit_layers(asked: Limits, found: Found) -> dict[str, Layer]:
    """The layers ``memory``, ``pids``, ``cpu`` and ``disk``."""
    return {
        "memory": _memory(asked, found),
        "pids": _pids(asked, found),
        "cpu": _cpu(asked, found),
        "disk": _disk(asked, found),
    }


def _memory(asked: Limits, found: Found) -> Layer:
    enforced = found.enforced
    if enforced is not None and enforced.memory is not None:
        file, *_ = _FILES[found.version or 2]
        weaker = enforced.describe_weaker(CgroupLimits(memory=asked.memory))
        swap = "" if enforced.swap is None else f" swap={enforced.swap}"
        reason = weaker or ("" if enforced.swap == 0 else "what is swapped out comes on top: no limit on it can be had")
        return Layer(asked.memory, weaker is None, _cgroup(found, file), f"{file}={enforced.memory}{swap}", reason)
    each = _rlimit(found, "Max data size")
    if found.watched and each is not None and each <= asked.data:
        evidence = f"Max data size={each} of each process; looked at every {memory.PULSE:g} to {memory.IDLE:g} s"
        return Layer(asked.memory, True, "watcher + RLIMIT_DATA", evidence, "watched, may overshoot")
    return _absent("memory", asked.memory, found)


def _pids(asked: Limits, found: Found) -> Layer:
    enforced = found.enforced
    if enforced is not None and enforced.pids is not None:
        weaker = enforced.describe_weaker(CgroupLimits(pids=asked.max_pids + SHIM))
        return Layer(
            asked.max_pids, weaker is None, _cgroup(found, "pids.max"), f"pids.max={enforced.pids}", weaker or ""
        )
    each = _rlimit(found, "Max processes")
    if each is not None and each <= asked.max_pids + SHIM:
        why = "agents that it spawns are bounded one by one"
        mechanism = "RLIMIT_NPROC in a user namespace of its own"
        return Layer(asked.max_pids, True, mechanism, f"Max processes={each}", why)
    return _absent("pids", asked.max_pids, found)


def _cpu(asked: Limits, found: Found) -> Layer:
    enforced = found.enforced
    if enforced is None or enforced.cpu is None:
        return _absent("cpu", asked.cpu_quota, found)
    _, _, quota, weight = _FILES[found.version or 2]
    weaker = enforced.describe_weaker(CgroupLimits(cpu=asked.cpu_quota / PERIOD, weight=asked.cpu_weight))
    evidence = f"{quota}: {enforced.cpu * 100:g} % of a CPU, {weight}: weight {enforced.weight}"
    return Layer(asked.cpu_quota, weaker is None, _cgroup(found, quota), evidence, weaker or "")


def _disk(asked: Limits, found: Found) -> Layer:
    match found.workspace:
        case None:
            return Layer(asked.disk, False, "", "", "nothing bounds its workspace")
        case Usage() as usage:
            looks = f"bytes and inodes counted every {disk.PULSE:g} to {disk.LONGEST:g} s"
            evidence = f"{usage} at the start; {looks}, limit {format_size(asked.disk)} and {asked.inodes} inodes"
            reason = "watched, may overshoot: between two counts any number of bytes and files can be written"
            return Layer(asked.disk, True, "watched", evidence, reason)
        case Tmpfs(options=options) as mount:
            mechanism = ",".join(one for one in options.split(",") if one.startswith(("size=", "nr_inodes=")))
            return _sized(asked, f"tmpfs {mechanism}", options, mount.size, mount.inodes)
        case Image(size, inodes):
            rounded = attrs.evolve(asked, inodes=asked.inodes + asked.disk // INODE_ROUNDING + 16)
            layer = _sized(rounded, "loop image", f"statfs: {size} bytes, {inodes} inodes", size, inodes)
            if layer.active and inodes > asked.inodes:
                return attrs.evolve(layer, reason=f"ext4 has rounded {asked.inodes} inodes up to {inodes}")
            return layer


def _sized(asked: Limits, mechanism: str, evidence: str, size: int | None, inodes: int | None) -> Layer:
    wrong = [
        f"{name}: the kernel enforces {found or 'no limit'}, not {wanted}"
        for name, found, wanted in (("disk", size, _pages(asked.disk)), ("inodes", inodes, asked.inodes))
        if not found or found > wanted
    ]
    return Layer(asked.disk, not wrong, mechanism, evidence, "; ".join(wrong))


def _pages(size: int) -> int:
    """Round a size up to whole pages, as the kernel does."""
    return -(-size // 4096) * 4096


def _absent(what: str, amount: int, found: Found) -> Layer:
    why = next((one for one in found.missing if one.what == what), None)
    reason = NOT_DELEGATED[what] + (f" ({why.reason}); {why.knob}" if why is not None else "")
    return Layer(amount, False, "", "", reason)


def _cgroup(found: Found, file: str) -> str:
    return f"cgroup v{found.version} {file}"


def _rlimit(found: Found, line: str) -> int | None:
    """The hard limit: the program can't raise it."""
    _, hard = found.rlimits.get(line, ("?", "?"))
    return int(hard) if hard.isdecimal() else None


def ending(
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
    if cgroup is None:
        return None
    if not cgroup.refused_above and cgroup.pids_limit == asked.max_pids + SHIM:
        cgroup = attrs.evolve(cgroup, pids_limit=asked.max_pids)
    first, *rest = cgroup.describe() or ("",)
    if cgroup.out_of_memory and cgroup.memory_limit is not None:
        first = f"killed: {first}" if _killed(status) else f"{first}: processes of it were killed"
    return "; ".join((first, *rest)) or None


def _killed(status: Status) -> bool:
    return status.signal == 9 or status.code == 128 + 9
