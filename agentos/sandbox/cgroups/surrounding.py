"""The control groups around this kernel that limit its processes: its unit's (TasksMax=), its container's."""

import os
from collections.abc import Iterator

from . import files
from .discover import find_own_directory, parse_memberships, parse_mounts, read_directory
from .values import CgroupError


def find_full_group(cgroup: str, mountinfo: str) -> tuple[str, int] | None:
    """The file with the limit of the innermost group around this process that is full, and the limit.

    From the texts of /proc/self/cgroup and /proc/self/mountinfo. Blocks: it reads small files. None as well where
    groups can't be read: this only explains what has failed.
    """
    try:
        for directory in _list_directories(cgroup, mountinfo):
            most, now = (files.read_number(f"{directory}/pids.{name}") for name in ("max", "current"))
            if most is not None and now is not None and now >= most:
                return f"{directory}/pids.max", most
    except (OSError, ValueError, CgroupError):
        return None
    return None


def _list_directories(cgroup: str, mountinfo: str) -> Iterator[str]:
    """Our own group with the controller pids and those around it, as far as they are visible, the innermost first."""
    mounts = parse_mounts(mountinfo)
    for own in parse_memberships(cgroup):
        if own.controllers and "pids" not in own.controllers:
            continue
        needed = own.controllers & {"pids"}  # version 2 has no list of them
        shown = [mount for mount in mounts if mount.version == (1 if needed else 2) and mount.controllers >= needed]
        directory = find_own_directory(own.path, shown, read_directory)
        while directory is not None and "cgroup.procs" in os.listdir(directory):
            yield directory
            directory = os.path.dirname(directory)
