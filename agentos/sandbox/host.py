"""Properties of the host that a sandbox plan depends on."""

from collections.abc import Mapping

from msgspec import Struct

from .files.sub_ids import SubIds
from .policy import Interpreter


class Host(Struct, frozen=True):
    """Properties of the host that a plan depends on. ``directories`` and ``links`` are the host's system paths."""

    uid: int  # of the kernel process
    gid: int
    architecture: str  # as os.uname().machine
    directories: frozenset[str] = frozenset()  # also single files
    links: Mapping[str, str] = {}
    landlock_abi: int = 0
    cgroup_namespace: bool = True
    memory_cgroup: bool = False  # if not, a watcher polls, and each process has its own limit
    pids_cgroup: bool = False
    memfd_noexec: bool = False  # vm.memfd_noexec can be written for a new PID namespace
    hard_limits: Mapping[str, int] = {}
    interpreter: Interpreter | None = None  # the kernel's own
    sub_ids: SubIds | None = None  # without root
