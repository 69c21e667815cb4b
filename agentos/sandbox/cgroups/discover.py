"""Find the control groups that this kernel may use, and create its root cgroup.

:func:`discover` decides from texts and listings. :func:`open_root` acts, and blocks: it moves our own processes,
creates directories and writes files. A mounted ``cgroup2`` alone proves nothing: on a host with version 1 it has no
controller that limits anything.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import field, frozen

from . import files as files
from . import v1, v2
from .values import LIMITING, CgroupError, Limits

Group = v1.Group | v2.Group

HELPING = frozenset({"freezer", "cpuacct"})  # controllers of version 1; in version 2 every cgroup has both functions
ROUNDS = 10  # of moving processes; a process that forks meanwhile needs one more
LEAF = "kernel"  # the cgroup of our own processes in version 2
DELEGATE = (
    "give it a group of its own: systemd-run {user}--scope -p Delegate=yes agentos run, or a unit with Delegate=yes, "
    "or a container with writable control groups in which it is the first program"
)
BE_ROOT = "run as root, or boot with systemd.unified_cgroup_hierarchy=1"
_INSTANCE = re.compile(r"agentos-([0-9a-f]{8})-([0-9]+)-([0-9]+)-([0-9]+)")


@frozen
class Membership:
    """A line of /proc/self/cgroup: the controllers of a hierarchy (empty for version 2) and our path in it.

    A named hierarchy of version 1 without controllers has its name in their place.
    """

    controllers: frozenset[str]
    path: str


@frozen
class Mount:
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


@frozen
class Directory:
    """Properties of a cgroup's directory."""

    names: frozenset[str]
    writable: bool  # child cgroups can be created here, and processes moved
    controllers: frozenset[str] = frozenset()  # version 2: can be enabled for child cgroups
    enabled: frozenset[str] = frozenset()  # version 2: are enabled


@frozen
class Missing:
    """A limit that isn't available on this host, the reason, and what to change."""

    what: str  # memory, pids, cpu
    reason: str
    knob: str


@frozen
class Scope:
    """Version 2: the cgroup that was delegated to us."""

    directory: str
    controllers: frozenset[str]
    missing: tuple[Missing, ...] = ()
    moved: bool = False  # we are in its leaf already

    version = 2


@frozen
class Hierarchies:
    """Version 1: our own cgroup by controller."""

    directories: Mapping[str, str]
    missing: tuple[Missing, ...] = ()

    version = 1


@frozen
class Nothing:
    """Neither version can limit anything for us."""

    missing: tuple[Missing, ...]

    version = None


Found = Scope | Hierarchies | Nothing
Look = Callable[[str], Directory | None]


@frozen
class Cgroups:
    """The root cgroup for all agents of this kernel, and the missing limits; ``root`` is ``None`` if there is none."""

    root: Group | None
    missing: tuple[Missing, ...] = field(default=())

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that can limit."""
        return self.root.controllers if self.root else frozenset()


def memberships(text: str) -> Sequence[Membership]:
    """Parse /proc/self/cgroup: lines ``ID:CONTROLLERS:PATH``; version 2 is ``0::PATH``."""
    split = (line.split(":", 2) for line in text.splitlines())
    return [Membership(frozenset(filter(None, names.split(","))), path) for _, names, path in split]


def mounts(text: str) -> Sequence[Mount]:
    """Parse /proc/self/mountinfo for cgroup mounts."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_unescaped(word) for word in before.split(" ")[3:5])
            names = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
            found.append(Mount(root, point, 2 if kind == "cgroup2" else 1, names & (LIMITING | HELPING)))
    return found


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def discover(cgroup: str, mountinfo: str, look: Look, uid: int) -> Found:
    """Choose the cgroups to use, from the texts of /proc/self/cgroup and /proc/self/mountinfo.

    A controller belongs to one version only. The version that can limit more is chosen, version 2 if both are equal.
    ``look`` returns the properties of a directory, ``None`` if it doesn't exist.
    """
    where, seen = memberships(cgroup), mounts(mountinfo)
    first, second = _version_1(where, seen, look, uid), _version_2(where, seen, look, uid)
    usable_1 = LIMITING & first.directories.keys() if isinstance(first, Hierarchies) else frozenset[str]()
    usable_2 = second.controllers if isinstance(second, Scope) else frozenset[str]()
    if len(usable_1) > len(usable_2):
        return first
    # Report the reasons of the version that has the controllers: advice on version 2 doesn't help a host that has them
    # in version 1.
    if not usable_2 and any(mount.controllers & LIMITING for mount in seen):
        return first
    return second


def _version_2(where: Sequence[Membership], seen: Sequence[Mount], look: Look, uid: int) -> Scope | Nothing:
    shown = [mount for mount in seen if mount.version == 2]
    path = next((own.path for own in where if not own.controllers), None)
    directory = _own_directory(path, shown, look) if path is not None else None
    if path is None or directory is None:
        why = f"our own group {path} isn't visible in any cgroup2 mount" if path and shown else "cgroup2 isn't mounted"
        return Nothing(_all_missing(LIMITING, why, "mount cgroup2 at /sys/fs/cgroup"))
    moved = False
    above = look(os.path.dirname(directory)) if os.path.basename(directory) == LEAF else None
    if above is not None and above.writable and above.enabled & LIMITING:
        directory, moved = os.path.dirname(directory), True
    group = look(directory)
    assert group is not None
    delegate = DELEGATE.format(user="--user " if uid else "")
    usable = LIMITING & group.controllers
    if not usable:
        why = f"{directory} has the controllers {_listed(group.controllers)}: not those that limit memory, pids, cpu"
        return Nothing(_all_missing(LIMITING, why, delegate))
    if not group.writable:
        why = f"{directory} can't be written by uid {uid}: it isn't delegated, or is mounted read-only"
        return Nothing(_all_missing(LIMITING, why, delegate))
    lacking = LIMITING - usable
    why = f"the controller isn't handed down to {directory}"
    knob = f"in the unit or in user@.service: Delegate={' '.join(sorted(LIMITING))}"
    return Scope(directory, usable, _all_missing(lacking, why, knob), moved)


def _version_1(where: Sequence[Membership], seen: Sequence[Mount], look: Look, uid: int) -> Hierarchies | Nothing:
    directories: dict[str, str] = {}
    missing: list[Missing] = []
    for name in sorted(LIMITING | HELPING):
        shown = [mount for mount in seen if name in mount.controllers]
        path = next((own.path for own in where if name in own.controllers), None)
        directory = _own_directory(path, shown, look) if path is not None else None
        group = look(directory) if directory else None
        if directory and group and group.writable:
            directories[name] = directory
        elif name in LIMITING:
            why = f"{directory} can't be written by uid {uid}" if directory else f"no {name} hierarchy is visible"
            missing.append(Missing(name, why, BE_ROOT if directory else f"mount {name}"))
    return Hierarchies(directories, tuple(missing)) if LIMITING & directories.keys() else Nothing(tuple(missing))


def _own_directory(path: str, shown: Sequence[Mount], look: Look) -> str | None:
    """Return the directory that shows our own cgroup; skips mounts that another file system covers."""
    for mount in shown:
        directory = mount.directory(path)
        found = look(directory) if directory else None
        if found and "cgroup.procs" in found.names:
            return directory
    return None


def _all_missing(names: Collection[str], reason: str, knob: str) -> tuple[Missing, ...]:
    return tuple(Missing(name, reason, knob) for name in sorted(names))


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def look_at(path: str) -> Directory | None:
    """Read the properties of a cgroup's directory. Blocks: it reads three files."""
    try:
        names = frozenset(os.listdir(path))
    except OSError:
        return None
    needed = [path, *(f"{path}/{name}" for name in ("cgroup.procs", "cgroup.subtree_control") if name in names)]
    return Directory(
        names=names,
        writable=all(os.access(name, os.W_OK, effective_ids=True) for name in needed),
        controllers=frozenset((files.read_if_there(f"{path}/cgroup.controllers") or "").split()),
        enabled=frozenset((files.read_if_there(f"{path}/cgroup.subtree_control") or "").split()),
    )


def discover_here() -> Found:
    """:func:`discover` for this process. Blocks: it reads /proc and the cgroups' directories."""
    with open("/proc/self/cgroup") as cgroup, open("/proc/self/mountinfo") as mountinfo:
        return discover(cgroup.read(), mountinfo.read(), look_at, os.geteuid())


def open_root(found: Found) -> Cgroups:
    """Create the root cgroup of this kernel, once. In version 2 our own processes move to a leaf first.

    Limits that turn out not to work are added to ``missing``. Blocks. The caller removes ``root`` at the end.
    """
    try:
        if isinstance(found, Scope):
            return _open_scope(found)
        if isinstance(found, Hierarchies):
            own = v1.Group(found.directories)
            return Cgroups(own.nest(instance(), Limits()), found.missing)
    except CgroupError as error:
        knob = BE_ROOT if isinstance(found, Hierarchies) else DELEGATE.format(user="--user " if os.geteuid() else "")
        return Cgroups(None, _all_missing(LIMITING, str(error), knob))
    return Cgroups(None, found.missing)


def _open_scope(scope: Scope) -> Cgroups:
    if not scope.moved and "cgroup.type" in os.listdir(scope.directory):  # the true root may hold processes
        _move_to_leaf(scope.directory)
    missing = list(scope.missing)
    enabled = set()
    for name in sorted(scope.controllers):
        try:
            files.write(f"{scope.directory}/cgroup.subtree_control", f"+{name}")
            enabled.add(name)
        except CgroupError as error:
            missing.append(Missing(name, str(error), "see the kernel's documentation of cgroup.subtree_control"))
    if not enabled:
        return Cgroups(None, tuple(missing))
    group = v2.Group(scope.directory, frozenset(enabled))
    return Cgroups(group.nest(instance(), Limits()), tuple(missing))


def _move_to_leaf(directory: str) -> None:
    """Move all processes of a cgroup to a leaf in it if they are all ours; otherwise move none."""
    leaf = f"{directory}/{LEAF}"
    for _ in range(ROUNDS):
        inside = files.processes([directory])
        if not inside:
            return
        strangers = sorted(pid for pid in inside if not _ours(pid))
        if strangers:
            who = ", ".join(_described(pid) for pid in strangers[:3])
            raise CgroupError(f"{directory} is shared with other processes: {who}")
        if not os.path.isdir(leaf):
            files.make(leaf)
        for pid in inside:
            try:
                files.write(f"{leaf}/cgroup.procs", pid)
            except CgroupError:
                if _stat(pid) is not None:  # otherwise it has ended meanwhile
                    raise
    raise CgroupError(f"{directory}: our own processes fork quicker than they can be moved")


def _ours(pid: int) -> bool:
    """Whether it is this process or a descendant."""
    while pid not in (0, 1, os.getpid()):
        fields = _stat(pid)
        if fields is None:
            return True  # it has ended meanwhile and needn't be moved
        pid = int(fields[1])
    return pid == os.getpid()


def _stat(pid: int) -> Sequence[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; ``None`` if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _described(pid: int) -> str:
    name = files.read_if_there(f"/proc/{pid}/comm") if pid else None
    return f"{pid} ({name})" if name else "one that isn't visible here"


def instance() -> str:
    """Name of this kernel's root cgroup. Boot id, PID namespace, pid and start time show whether its owner is alive."""
    boot = files.read("/proc/sys/kernel/random/boot_id").replace("-", "")[:8]
    return f"agentos-{boot}-{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-{_started(os.getpid())}"


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks; ``None`` if there is no such process."""
    fields = _stat(pid)
    return fields[19] if fields else None


def stale(name: str, own: str, started: Callable[[int], str | None]) -> bool:
    """Whether a cgroup name is of a kernel that has ended.

    ``own`` is our :func:`instance`; ``started`` returns the start time of a pid. A cgroup of another PID namespace
    can't be judged from here, and stays.
    """
    theirs, ours = _INSTANCE.fullmatch(name), _INSTANCE.fullmatch(own)
    if theirs is None or ours is None:
        return False
    if theirs[1] != ours[1]:
        return True
    return theirs[2] == ours[2] and started(int(theirs[3])) != theirs[4]


def sweep(found: Found) -> tuple[str, ...]:
    """Kill and remove the cgroups that ended kernels left in ours; returns their names. Blocks.

    :class:`CgroupError` if one can't be removed.
    """

    if isinstance(found, Nothing):
        return ()
    own = instance()
    around = {"": found.directory} if isinstance(found, Scope) else found.directories
    names = {name for directory in around.values() for name in os.listdir(directory) if stale(name, own, _started)}
    for name in sorted(names):
        there = {key: f"{path}/{name}" for key, path in around.items() if os.path.isdir(f"{path}/{name}")}
        second = isinstance(found, Scope)
        group = v2.Group(there[""], frozenset()) if second else v1.Group(there)
        try:
            group.kill()
            group.remove()
        except CgroupError:
            if any(os.path.exists(path) for path in there.values()):  # otherwise another kernel has removed it first
                raise
    return tuple(sorted(names))
