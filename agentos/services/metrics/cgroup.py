"""Figures from the files of one agent's cgroup, version 1 or 2. All functions block."""

from typing import Final

from agentos.sandbox.cgroups import files, v2
from agentos.sandbox.cgroups.discover import Group
from agentos_sdk.values import CgroupCpu, CgroupIo, CgroupMemory, CgroupMetrics, CgroupPids, CgroupPressure

RESOURCES: Final = ("cpu", "memory", "io")  # that have a pressure file


def read_cgroup(group: Group, agent_id: int, name: str) -> CgroupMetrics:
    """Read the cgroup of an agent; raises ``CgroupError`` if it is being removed."""
    usage, limits, none = group.usage(), group.read_limits(), "/proc/self/no"
    io, pressure = CgroupIo(read_bytes=None, written_bytes=None), dict[str, CgroupPressure]()
    if isinstance(group, v2.Group):
        memory = cpu = pids = group.directory
        events = files.read_counters(f"{memory}/memory.events")
        throttled, unit = "throttled_usec", 1e6
        io = _read_io(files.read_optional(f"{memory}/io.stat"))
        texts = {one: files.read_optional(f"{memory}/{one}.pressure") for one in RESOURCES}
        pressure = {one: parse_pressure(text) for one, text in texts.items() if text}
    else:
        memory, cpu, pids = (group.directories.get(one, none) for one in ("memory", "cpu", "pids"))
        reached = files.read_number(f"{memory}/memory.failcnt")
        killed = files.read_counters(f"{memory}/memory.oom_control").get("oom_kill")
        events = {one: number for one, number in (("max", reached), ("oom_kill", killed)) if number is not None}
        throttled, unit = "throttled_time", 1e9
    counted = files.read_counters(f"{cpu}/cpu.stat")
    waited = counted.get(throttled)
    return CgroupMetrics(
        agent_id=agent_id,
        name=name,
        version=2 if isinstance(group, v2.Group) else 1,
        memory=CgroupMemory(
            current_bytes=usage.memory, peak_bytes=usage.peak, limit_bytes=limits.memory, events=events or None
        ),
        cpu=CgroupCpu(
            usage_seconds=usage.cpu_seconds,
            throttled_seconds=waited / unit if waited is not None else None,
            throttled_periods=counted.get("nr_throttled"),
            periods=counted.get("nr_periods"),
            limit=limits.cpu,
            weight=limits.weight,
        ),
        pids=CgroupPids(
            current=usage.pids,
            peak=files.read_number(f"{pids}/pids.peak"),
            limit=limits.pids,
            refused=files.read_counters(f"{pids}/pids.events").get("max"),
        ),
        io=io,
        pressure=pressure or None,
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


def _read_io(text: str | None) -> CgroupIo:
    """Bytes read and written on all devices, from lines ``8:0 rbytes=1 wbytes=2 rios=3 ...``."""
    lines = text.splitlines() if text is not None else []
    counted = [dict(word.split("=", 1) for word in line.split()[1:] if "=" in word) for line in lines]
    read, written = (sum(int(one.get(name, 0)) for one in counted) for name in ("rbytes", "wbytes"))
    return CgroupIo(read_bytes=None if text is None else read, written_bytes=None if text is None else written)


def parse_pressure(text: str) -> CgroupPressure:
    """Parse a pressure file: lines ``some avg10=0.00 avg60=0.00 avg300=0.00 total=0``, in percent and microseconds."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        found[kind] = {name: float(value) for name, _, value in (word.partition("=") for word in words)}
    shares = {kind: [one[name] / 100 for name in ("avg10", "avg60", "avg300")] for kind, one in found.items()}
    full = found.get("full")
    return CgroupPressure(
        some=shares["some"],
        some_seconds=found["some"]["total"] / 1e6,
        full=shares.get("full"),
        full_seconds=full["total"] / 1e6 if full is not None else None,
    )
