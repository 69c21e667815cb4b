"""Figures from the files of one agent's cgroup, version 1 or 2. All functions block."""

from typing import Final

from msgspec import Struct

from agentos.sandbox.cgroups import files, v1, v2
from agentos.sandbox.cgroups.discover import Group
from agentos.sandbox.cgroups.values import EnforcedLimits

RESOURCES: Final = ("cpu", "memory", "io")  # that have a pressure file


class Pressure(Struct, frozen=True):
    """The shares of the last 10, 60 and 300 seconds, 0 to 1, in which tasks waited for a resource; the sum in seconds.

    ``some``: at least one task waited; ``full``: all of them did. See the kernel's documentation of PSI.
    """

    some: tuple[float, float, float]
    some_seconds: float
    full: tuple[float, float, float] | None
    full_seconds: float | None


class CgroupFigures(Struct, frozen=True):
    """The counters and the enforced limits of a cgroup; what its version or its controllers lack is None.

    ``memory_events`` are by the kernel's names: ``max`` counts how often the limit was reached, ``oom_kill`` how many
    processes were killed for it.
    """

    version: int
    limits: EnforcedLimits
    memory: int | None
    memory_peak: int | None
    memory_events: dict[str, int] | None
    cpu_seconds: float | None
    throttled_seconds: float | None
    throttled_periods: int | None
    periods: int | None
    pids: int | None
    pids_peak: int | None
    forks_refused: int | None
    read_bytes: int | None = None
    written_bytes: int | None = None
    pressure: dict[str, Pressure] | None = None


def read_cgroup(group: Group) -> CgroupFigures:
    """Read one cgroup; raises ``CgroupError`` if it is being removed."""
    return _read_v2(group) if isinstance(group, v2.Group) else _read_v1(group)


def _read_v2(group: v2.Group) -> CgroupFigures:
    usage, where = group.usage(), group.directory
    cpu = files.read_counters(f"{where}/cpu.stat")
    read, written = _read_io(files.read_optional(f"{where}/io.stat"))
    pressure = {one: files.read_optional(f"{where}/{one}.pressure") for one in RESOURCES}
    return CgroupFigures(
        version=2,
        limits=group.read_limits(),
        memory=usage.memory,
        memory_peak=usage.peak,
        memory_events=files.read_counters(f"{where}/memory.events") or None,
        cpu_seconds=usage.cpu_seconds,
        throttled_seconds=_scaled(cpu.get("throttled_usec"), 1e6),
        throttled_periods=cpu.get("nr_throttled"),
        periods=cpu.get("nr_periods"),
        pids=usage.pids,
        pids_peak=files.read_number(f"{where}/pids.peak"),
        forks_refused=files.read_counters(f"{where}/pids.events").get("max"),
        read_bytes=read,
        written_bytes=written,
        pressure={one: parse_pressure(text) for one, text in pressure.items() if text} or None,
    )


def _read_v1(group: v1.Group) -> CgroupFigures:
    usage, none = group.usage(), "/proc/self/no"
    memory, cpu, pids = (group.directories.get(name, none) for name in ("memory", "cpu", "pids"))
    reached = files.read_number(f"{memory}/memory.failcnt")
    killed = files.read_counters(f"{memory}/memory.oom_control").get("oom_kill")
    counted = files.read_counters(f"{cpu}/cpu.stat")
    events = {name: number for name, number in (("max", reached), ("oom_kill", killed)) if number is not None}
    return CgroupFigures(
        version=1,
        limits=group.read_limits(),
        memory=usage.memory,
        memory_peak=usage.peak,
        memory_events=events or None,
        cpu_seconds=usage.cpu_seconds,
        throttled_seconds=_scaled(counted.get("throttled_time"), 1e9),
        throttled_periods=counted.get("nr_throttled"),
        periods=counted.get("nr_periods"),
        pids=usage.pids,
        pids_peak=files.read_number(f"{pids}/pids.peak"),
        forks_refused=files.read_counters(f"{pids}/pids.events").get("max"),
    )


def list_own_processes(group: Group) -> frozenset[int]:
    """The pids of an agent's own processes, without agents and commands in cgroups below its own."""
    return files.list_processes([group.leaf if isinstance(group, v2.Group) else group.paths[0]])


def read_working_set(group: Group) -> int | None:
    """Memory in bytes without the files in the page cache that weren't used lately: these are freed when needed."""
    if isinstance(group, v2.Group):
        counted, name = files.read_counters(f"{group.directory}/memory.stat"), "inactive_file"
    else:
        directory = group.directories.get("memory", "/proc/self/no")
        counted, name = files.read_counters(f"{directory}/memory.stat"), "total_inactive_file"
    used = group.usage().memory
    return None if used is None else max(0, used - counted.get(name, 0))


def _read_io(text: str | None) -> tuple[int | None, int | None]:
    """Bytes read and written on all devices, from lines ``8:0 rbytes=1 wbytes=2 rios=3 ...``."""
    if text is None:
        return None, None
    counted = [dict(word.split("=", 1) for word in line.split()[1:] if "=" in word) for line in text.splitlines()]
    return tuple(sum(int(one.get(name, 0)) for one in counted) for name in ("rbytes", "wbytes"))  # type: ignore[return-value]


def parse_pressure(text: str) -> Pressure:
    """Parse a pressure file: lines ``some avg10=0.00 avg60=0.00 avg300=0.00 total=0``, in percent and microseconds."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        found[kind] = {name: float(value) for name, _, value in (word.partition("=") for word in words)}

    def shares(kind: str) -> tuple[float, float, float]:
        ten, sixty, three_hundred = (found[kind][name] / 100 for name in ("avg10", "avg60", "avg300"))
        return ten, sixty, three_hundred

    full = "full" in found
    return Pressure(
        shares("some"),
        found["some"]["total"] / 1e6,
        shares("full") if full else None,
        found["full"]["total"] / 1e6 if full else None,
    )


def _scaled(number: int | None, unit: float) -> float | None:
    return None if number is None else number / unit
