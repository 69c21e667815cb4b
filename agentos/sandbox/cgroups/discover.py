"""Find the control groups that this kernel may use, and create its root cgroup.

:func:`discover` decides from texts and listings. :func:`open_root` acts, and blocks: it moves our own processes,
creates directories and writes files. A mounted ``cgroup2`` alone proves nothing: on a host with version 1 it has no
controller that limits anything.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import field
from msgspec import Struct

from . import files, v1, v2
from .values import CONTROLLERS, CgroupError, Limits

Group = v1.Group | v2.Group

HELPERS = frozenset({"freezer", "cpuacct"})  # controllers of version 1; in version 2 every cgroup has both functions
MAX_MOVE_ROUNDS = 10  # of moving processes; a process that forks meanwhile needs one more
KERNEL_LEAF = "kernel"  # the cgroup of our own processes in version 2
DELEGATE_ADVICE = (
    "give it a group of its own: systemd-run {user}--scope -p Delegate=yes agentos run, or a unit with Delegate=yes, "
    "or a container with writable control groups in which it is the first program"
)
ROOT_ADVICE = "run as root, or boot with systemd.unified_cgroup_hierarchy=1"
_INSTANCE_NAME = re.compile(r"agentos-([0-9a-f]{8})-([0-9]+)-([0-9]+)-([0-9]+)")


class Membership(Struct, frozen=True):
    """A line of /proc/self/cgroup: the controllers of a hierarchy (empty for version 2) and our path in it.

    A named hierarchy of version 1 without controllers has its name in their place.
    """

    controllers: frozenset[str]
    path: str


class Mount(Struct, frozen=True):
    """A cgroup mount from /proc/self/mountinfo: which part of the hierarchy it shows, and where."""

    root: str
    point: str
    version: int
    controllers: frozenset[str]  # of version 1

    def directory(self, path: str) -> str | None:
        """Map a cgroup path to its directory in this mount; ``None`` if the mount doesn't show it."""
        root = self.root.rstrip("/")
        if ".." in f"{root}{path}".split("/") or not (path == root or path.startswith(f"{root}/")):
            return None
        return self.point + path[len(root) :].rstrip("/")


class CgroupDirectory(Struct, frozen=True):
    """Properties of a cgroup's directory."""

    names: frozenset[str]
    writable: bool  # child cgroups can be created here, and processes moved
    controllers: frozenset[str] = frozenset()  # version 2: can be enabled for child cgroups
    enabled: frozenset[str] = frozenset()  # version 2: are enabled


class MissingLimit(Struct, frozen=True):
    """A limit that isn't available on this host, the reason, and what to change."""

    limit: str  # memory, pids, cpu
    reason: str
    remedy: str


class V2Scope(Struct, frozen=True):
    """Version 2: the cgroup that was delegated to us."""

    directory: str
    controllers: frozenset[str]
    missing: tuple[MissingLimit, ...] = ()
    in_leaf: bool = False  # we are in its leaf already

    version = 2


class V1Hierarchies(Struct, frozen=True):
    """Version 1: our own cgroup by controller."""

    directories: Mapping[str, str]
    missing: tuple[MissingLimit, ...] = ()

    version = 1


class NoCgroups(Struct, frozen=True):
    """Neither version can limit anything for us."""

    missing: tuple[MissingLimit, ...]

    version = None


HostCgroups = V2Scope | V1Hierarchies | NoCgroups
ReadDirectory = Callable[[str], CgroupDirectory | None]


class Cgroups(Struct, frozen=True):
    """The root cgroup for all agents of this kernel, and the missing limits; ``root`` is ``None`` if there is none."""

    root: Group | None
    missing: tuple[MissingLimit, ...] = field(default=())

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that can limit."""
        return self.root.controllers if self.root else frozenset()


def parse_memberships(text: str) -> Sequence[Membership]:
    """Parse /proc/self/cgroup: lines ``ID:CONTROLLERS:PATH``; version 2 is ``0::PATH``."""
    split = (line.split(":", 2) for line in text.splitlines())
    return [Membership(frozenset(filter(None, names.split(","))), path) for _, names, path in split]


def parse_mounts(text: str) -> Sequence[Mount]:
    """Parse /proc/self/mountinfo for cgroup mounts."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_unescape(word) for word in before.split(" ")[3:5])
            names = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
            found.append(Mount(root, point, 2 if kind == "cgroup2" else 1, names & (CONTROLLERS | HELPERS)))
    return found


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def discover(cgroup: str, mountinfo: str, read_directory: ReadDirectory, uid: int) -> HostCgroups:
    """Choose the cgroups to use, from the texts of /proc/self/cgroup and /proc/self/mountinfo.

    A controller belongs to one version only. The version that can limit more is chosen, version 2 if both are equal.
    ``look`` returns the properties of a directory, ``None`` if it doesn't exist.
    """
    memberships, mounts = parse_memberships(cgroup), parse_mounts(mountinfo)
    first = _discover_v1(memberships, mounts, read_directory, uid)
    second = _discover_v2(memberships, mounts, read_directory, uid)
    usable_1 = CONTROLLERS & first.directories.keys() if isinstance(first, V1Hierarchies) else frozenset[str]()
    usable_2 = second.controllers if isinstance(second, V2Scope) else frozenset[str]()
    if len(usable_1) > len(usable_2):
        return first
    # Report the reasons of the version that has the controllers: advice on version 2 doesn't help a host that has them
    # in version 1.
    if not usable_2 and any(mount.controllers & CONTROLLERS for mount in mounts):
        return first
    return second


def _discover_v2(
    memberships: Sequence[Membership], mounts: Sequence[Mount], read_directory: ReadDirectory, uid: int
) -> V2Scope | NoCgroups:
    shown = [mount for mount in mounts if mount.version == 2]
    path = next((own.path for own in memberships if not own.controllers), None)
    directory = find_own_directory(path, shown, read_directory) if path is not None else None
    if path is None or directory is None:
        why = f"our own group {path} isn't visible in any cgroup2 mount" if path and shown else "cgroup2 isn't mounted"
        return NoCgroups(_missing_limits(CONTROLLERS, why, "mount cgroup2 at /sys/fs/cgroup"))
    in_leaf = False
    above = read_directory(os.path.dirname(directory)) if os.path.basename(directory) == KERNEL_LEAF else None
    if above is not None and above.writable and above.enabled & CONTROLLERS:
        directory, in_leaf = os.path.dirname(directory), True
    group = read_directory(directory)
    assert group is not None
    delegate = DELEGATE_ADVICE.format(user="--user " if uid else "")
    usable = CONTROLLERS & group.controllers
    if not usable:
        why = (
            f"{directory} has the controllers {_join_names(group.controllers)}: not those that limit memory, pids, cpu"
        )
        return NoCgroups(_missing_limits(CONTROLLERS, why, delegate))
    if not group.writable:
        why = f"{directory} can't be written by uid {uid}: it isn't delegated, or is mounted read-only"
        return NoCgroups(_missing_limits(CONTROLLERS, why, delegate))
    lacking = CONTROLLERS - usable
    why = f"the controller isn't handed down to {directory}"
    remedy = f"in the unit or in user@.service: Delegate={' '.join(sorted(CONTROLLERS))}"
    return V2Scope(directory, usable, _missing_limits(lacking, why, remedy), in_leaf)


def _discover_v1(
    memberships: Sequence[Membership], mounts: Sequence[Mount], read_directory: ReadDirectory, uid: int
) -> V1Hierarchies | NoCgroups:
    directories: dict[str, str] = {}
    missing: list[MissingLimit] = []
    for name in sorted(CONTROLLERS | HELPERS):
        shown = [mount for mount in mounts if name in mount.controllers]
        path = next((own.path for own in memberships if name in own.controllers), None)
        directory = find_own_directory(path, shown, read_directory) if path is not None else None
        group = read_directory(directory) if directory else None
        if directory and group and group.writable:
            directories[name] = directory
        elif name in CONTROLLERS:
            why = f"{directory} can't be written by uid {uid}" if directory else f"no {name} hierarchy is visible"
            advice = ROOT_ADVICE if directory else f"mount the {name} hierarchy of control groups"
            missing.append(MissingLimit(name, why, advice))
    return V1Hierarchies(directories, tuple(missing)) if CONTROLLERS & directories.keys() else NoCgroups(tuple(missing))


def find_own_directory(path: str, mounts: Sequence[Mount], read_directory: ReadDirectory) -> str | None:
    """Return the directory that shows our own cgroup; skips mounts that another file system covers."""
    for mount in mounts:
        directory = mount.directory(path)
        found = read_directory(directory) if directory else None
        if found and "cgroup.procs" in found.names:
            return directory
    return None


def _missing_limits(names: Collection[str], reason: str, remedy: str) -> tuple[MissingLimit, ...]:
    return tuple(MissingLimit(name, reason, remedy) for name in sorted(names))


def _join_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def read_directory(path: str) -> CgroupDirectory | None:
    """Read the properties of a cgroup's directory. Blocks: it reads three files."""
    try:
        names = frozenset(os.listdir(path))
    except OSError:
        return None
    needed = [path, *(f"{path}/{name}" for name in ("cgroup.procs", "cgroup.subtree_control") if name in names)]
    return CgroupDirectory(
        names=names,
        writable=all(os.access(name, os.W_OK, effective_ids=True) for name in needed),
        controllers=frozenset((files.read_optional(f"{path}/cgroup.controllers") or "").split()),
        enabled=frozenset((files.read_optional(f"{path}/cgroup.subtree_control") or "").split()),
    )


def discover_here() -> HostCgroups:
    """:func:`discover` for this process. Blocks: it reads /proc and the cgroups' directories."""
    with open("/proc/self/cgroup") as cgroup, open("/proc/self/mountinfo") as mountinfo:
        return discover(cgroup.read(), mountinfo.read(), read_directory, os.geteuid())


def open_root(found: HostCgroups) -> Cgroups:
    """Create the root cgroup of this kernel, once. In version 2 our own processes move to a leaf first.

    Limits that turn out not to work are added to ``missing``. Blocks. The caller removes ``root`` at the end.
    """
    try:
        if isinstance(found, V2Scope):
            return _open_scope(found)
        if isinstance(found, V1Hierarchies):
            own = v1.Group(found.directories)
            return Cgroups(own.create_child(instance_name(), Limits()), found.missing)
    except CgroupError as error:
        remedy = (
            ROOT_ADVICE
            if isinstance(found, V1Hierarchies)
            else DELEGATE_ADVICE.format(user="--user " if os.geteuid() else "")
        )
        return Cgroups(None, _missing_limits(CONTROLLERS, str(error), remedy))
    return Cgroups(None, found.missing)


def _open_scope(scope: V2Scope) -> Cgroups:
    if not scope.in_leaf and "cgroup.type" in os.listdir(scope.directory):  # the true root may hold processes
        _move_to_leaf(scope.directory)
    missing = list(scope.missing)
    enabled = set()
    for name in sorted(scope.controllers):
        try:
            files.write_value(f"{scope.directory}/cgroup.subtree_control", f"+{name}")
            enabled.add(name)
        except CgroupError as error:
            missing.append(MissingLimit(name, str(error), "see the kernel's documentation of cgroup.subtree_control"))
    if not enabled:
        return Cgroups(None, tuple(missing))
    group = v2.Group(scope.directory, frozenset(enabled))
    return Cgroups(group.create_child(instance_name(), Limits()), tuple(missing))


def _move_to_leaf(directory: str) -> None:
    """Move all processes of a cgroup to a leaf in it if they are all ours; otherwise move none."""
    leaf = f"{directory}/{KERNEL_LEAF}"
    for _ in range(MAX_MOVE_ROUNDS):
        inside = files.list_processes([directory])
        if not inside:
            return
        foreign = sorted(pid for pid in inside if not _is_own_process(pid))
        if foreign:
            names = ", ".join(_describe_process(pid) for pid in foreign[:3])
            raise CgroupError(f"{directory} is shared with other processes: {names}")
        if not os.path.isdir(leaf):
            files.create_directory(leaf)
        for pid in inside:
            try:
                files.write_value(f"{leaf}/cgroup.procs", pid)
            except CgroupError:
                if _read_stat(pid) is not None:  # otherwise it has ended meanwhile
                    raise
    raise CgroupError(f"{directory}: our own processes fork faster than they can be moved to a leaf cgroup")


def _is_own_process(pid: int) -> bool:
    """Whether it is this process or a descendant."""
    while pid not in (0, 1, os.getpid()):
        fields = _read_stat(pid)
        if fields is None:
            return True  # it has ended meanwhile and needn't be moved
        pid = int(fields[1])
    return pid == os.getpid()


def _read_stat(pid: int) -> Sequence[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; ``None`` if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _describe_process(pid: int) -> str:
    name = files.read_optional(f"/proc/{pid}/comm") if pid else None
    return f"{pid} ({name})" if name else "one that isn't visible here"


def instance_name() -> str:
    """Name of this kernel's root cgroup. Boot id, PID namespace, pid and start time show whether its owner is alive."""
    boot = files.read_text("/proc/sys/kernel/random/boot_id").replace("-", "")[:8]
    return f"agentos-{boot}-{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-{_read_start_time(os.getpid())}"


def _read_start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks; ``None`` if there is no such process."""
    fields = _read_stat(pid)
    return fields[19] if fields else None


def is_stale(name: str, own: str, read_start_time: Callable[[int], str | None]) -> bool:
    """Whether a cgroup name is of a kernel that has ended.

    ``own`` is our :func:`instance_name`; ``read_start_time`` returns the start time of a pid. A cgroup of another PID
    namespace can't be checked from here, and stays.
    """
    theirs, ours = _INSTANCE_NAME.fullmatch(name), _INSTANCE_NAME.fullmatch(own)
    if theirs is None or ours is None:
        return False
    if theirs[1] != ours[1]:
        return True
    return theirs[2] == ours[2] and read_start_time(int(theirs[3])) != theirs[4]


def remove_stale_cgroups(found: HostCgroups) -> tuple[str, ...]:
    """Kill and remove the cgroups that ended kernels left in ours; returns their names. Blocks.

    :class:`CgroupError` if one can't be removed.
    """

    if isinstance(found, NoCgroups):
        return ()
    own = instance_name()
    parents = {"": found.directory} if isinstance(found, V2Scope) else found.directories
    listed = {name for directory in parents.values() for name in os.listdir(directory)}
    names = sorted(name for name in listed if is_stale(name, own, _read_start_time))
    for name in names:
        former: dict[str, str] = {}
        while directories := {
            key: f"{path}/{name}" for key, path in parents.items() if os.path.isdir(f"{path}/{name}")
        }:
            is_v2 = isinstance(found, V2Scope)
            group = v2.Group(directories[""], frozenset()) if is_v2 else v1.Group(directories)
            try:
                group.kill()
                group.remove()
            except CgroupError:
                if directories == former:
                    raise
            former = directories  # another kernel may be removing it, one directory after the other
    return tuple(names)
