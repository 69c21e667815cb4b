"""What is done to a process until it is a sandboxed program: one value per step, plain data that both sides read.

A plan is a tuple of these, made by :mod:`agentos.sandbox.plan` and walked by :mod:`agentos.sandbox.inside.walk`. Every
path is one inside the sandbox, unless it says otherwise. Nothing but the standard library: the process that walks them
has nothing else.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Clone(NamedTuple):
    """Be born in new namespaces; done by the zygote. ``flags`` are CLONE_NEW*, the maps are lines of uid_map."""

    flags: int
    uid_map: str
    gid_map: str
    deny_setgroups: bool


class UnshareCgroup(NamedTuple):
    """A cgroup namespace, whose root is the cgroup that the process was put into."""


class PrivateMounts(NamedTuple):
    """What is mounted here from now on is seen nowhere else."""


class OpenSource(NamedTuple):
    """Open a path of the host's, to be bound later; what it names then is what is bound."""

    path: str


class TakeIdentity(NamedTuple):
    """Become this user and group of the user namespace, with its capabilities."""

    uid: int
    gid: int
    drop_groups: bool


class ForbidNamespaces(NamedTuple):
    """No user namespace can be made below this one."""


class Hostname(NamedTuple):
    """What uname(2) says."""

    name: str


class MountRoot(NamedTuple):
    """A tmpfs that becomes the root; the former root is still the root."""

    size: int  # bytes
    inodes: int


class MakeDirectory(NamedTuple):
    """A directory, with the parents that it lacks."""

    path: str


class WriteFile(NamedTuple):
    """A small file of the sandbox's own."""

    path: str
    text: str


class Link(NamedTuple):
    """A symbolic link."""

    path: str
    target: str


class Bind(NamedTuple):
    """An opened source, with all that is mounted below it, in a place of its own."""

    source: str  # the host's path, as opened
    target: str
    writable: bool = False
    device: bool = False  # a device node, which nodev would make useless


class MountTmpfs(NamedTuple):
    """A private file system in memory."""

    target: str
    size: int  # bytes
    inodes: int
    executable: bool


class MountProc(NamedTuple):
    """The processes of this PID namespace, and nothing else that /proc has."""

    target: str


class CloseSources(NamedTuple):
    """No descriptor leads to the host's files any more."""


class SwitchRoot(NamedTuple):
    """The tmpfs is the root; the host's files are gone."""


class ReadOnlyRoot(NamedTuple):
    """The root's own directory takes no more files."""


class LoopbackUp(NamedTuple):
    """127.0.0.1 and ::1 answer."""


class SetLimits(NamedTuple):
    """Resource limits, soft and hard alike: pairs of a name (``NOFILE``) and a value."""

    limits: tuple[tuple[str, int], ...]


class DropCapabilities(NamedTuple):
    """No capability in any set, and no way to get one."""


class NoNewPrivileges(NamedTuple):
    """Set-uid bits and file capabilities mean nothing any more."""


class Landlock(NamedTuple):
    """``attributes`` is a packed ruleset in hex; ``paths`` are (path, rights), ``ports`` are (port, rights)."""

    attributes: str
    paths: tuple[tuple[str, int], ...]
    ports: tuple[tuple[int, int], ...]


class Seccomp(NamedTuple):
    """``program`` is an array of ``struct sock_filter`` in hex."""

    program: str


class Execute(NamedTuple):
    """Leave a shim behind as PID 1 and become the program, in a session of its own."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str


Step = (
    Clone
    | UnshareCgroup
    | PrivateMounts
    | OpenSource
    | TakeIdentity
    | ForbidNamespaces
    | Hostname
    | MountRoot
    | MakeDirectory
    | WriteFile
    | Link
    | Bind
    | MountTmpfs
    | MountProc
    | CloseSources
    | SwitchRoot
    | ReadOnlyRoot
    | LoopbackUp
    | SetLimits
    | DropCapabilities
    | NoNewPrivileges
    | Landlock
    | Seccomp
    | Execute
)

KINDS: dict[str, type] = {kind.__name__: kind for kind in Step.__args__}


def encode(steps: Sequence[Step]) -> bytes:
    """The steps as bytes for another process."""
    return json.dumps([[type(step).__name__, *step] for step in steps]).encode()


def decode(data: bytes) -> tuple[Step, ...]:
    """The steps of :func:`encode`; ``KeyError`` or ``TypeError`` for anything else."""
    return tuple(KINDS[name](*map(_tuples, fields)) for name, *fields in json.loads(data))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def describe(step: Step) -> str:
    """A step for a message, shortly: its name, and the path or name that it is about."""
    about: Iterable[object] = ()
    match step:
        case Bind():
            about = (f"{step.source} at {step.target}" if step.source != step.target else step.target,)
        case OpenSource() | MakeDirectory() | WriteFile() | Link():
            about = (step.path,)
        case MountTmpfs() | MountProc():
            about = (step.target,)
        case Hostname():
            about = (step.name,)
        case Execute():
            about = (step.argv[0],)
    return " ".join([type(step).__name__, *map(str, about)])
