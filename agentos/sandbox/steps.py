"""What is done to a process until it is a sandboxed program: one value per step, plain data that both sides read.

A plan is a tuple of these, made by :mod:`agentos.sandbox.plan` and walked by :mod:`agentos.sandbox.inside.walk`. Every
path is one inside the sandbox, unless it says otherwise. Nothing but the standard library: the process that walks them
has nothing else.
"""

import marshal
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Clone(NamedTuple):
    """Be born in new namespaces; done by the zygote. ``flags`` are CLONE_NEW*, the maps are lines of uid_map.

    With no flags it is born in ours, as who we are, and there are no maps to write.
    """

    flags: int
    uid_map: str
    gid_map: str
    deny_setgroups: bool


class Join(NamedTuple):
    """Be born in no new namespaces, and join those of a sandbox that runs, as they come with the request."""


class Descend(NamedTuple):
    """Go on in a child, one PID namespace below: the one that was joined, or a new one with these CLONE_NEW* flags."""

    flags: int


class OwnProc(NamedTuple):
    """Show the processes of this PID namespace where those of the one above were shown."""

    target: str


class Listen(NamedTuple):
    """Hand over a TCP listener on 127.0.0.1; port 0 is any that is free."""

    port: int


class UnshareCgroup(NamedTuple):
    """A cgroup namespace, whose root is the cgroup that the process was put into."""


class PrivateMounts(NamedTuple):
    """A mount namespace, as the host's is now; what is mounted here from now on is seen nowhere else."""


class DetachSource(NamedTuple):
    """Take a copy of what is mounted at a path of the host's, to be bound at ``target``; done by the zygote, with root.

    It may open what the child, whose capabilities are worth nothing to the host's files, may not. ``owner``: the files
    of the path's owner belong to this user and group inside, by an id-mapped mount; where others can read the path
    anyway only if ``always``.
    """

    path: str
    target: str
    follow: bool  # symbolic links; otherwise one in any component is an error
    owner: tuple[int, int] | None
    always: bool = False
    writable: bool = False


class DetachImage(NamedTuple):
    """Mount a file that holds an ext4, to be bound at ``target``; done by the zygote, with root."""

    path: str
    target: str


class OpenSource(NamedTuple):
    """Open a path of the host's, to be bound later; what it names then is what is bound."""

    path: str
    follow: bool = True  # symbolic links; otherwise one in any component is an error


class ForbidExecutableMemfds(NamedTuple):
    """Set ``vm.memfd_noexec`` of the own PID namespace to 2: no memory file can be executed with execve(2).

    Linux lets only the host's uid 0 write it, so it comes before :class:`TakeIdentity`.
    """


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
    executable: bool = True  # otherwise mounted noexec; a device always is


class Protect(NamedTuple):
    """Keep names below ``directory`` as they are: read-only, and no directory on the way to them can be replaced."""

    directory: str
    names: tuple[str, ...]  # relative, each of something that exists


class MountTmpfs(NamedTuple):
    """A private file system in memory."""

    target: str
    size: int  # bytes
    inodes: int
    executable: bool
    counted: bool = False  # the kernel gets a descriptor of it, to see how full it is


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
    """Leave a shim behind as PID 1 and become the program, in a session of its own.

    ``alone``: without a shim, where there is no PID namespace that needs one. ``kept``: likewise, but with a process
    above that ends all it started. ``stdin`` is what it can read there.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    alone: bool = False
    stdin: bytes = b""
    kept: bool = False


class RunScript(NamedTuple):
    """As :class:`Execute`, but run a Python file in the interpreter that the zygote is; ``argv[0]`` is that file.

    ``first`` and ``last`` are directories to import from, before and after the standard library.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    alone: bool = False


Step = (
    Clone
    | Join
    | Descend
    | OwnProc
    | Listen
    | UnshareCgroup
    | PrivateMounts
    | DetachSource
    | DetachImage
    | OpenSource
    | ForbidExecutableMemfds
    | TakeIdentity
    | ForbidNamespaces
    | Hostname
    | MountRoot
    | MakeDirectory
    | WriteFile
    | Link
    | Bind
    | Protect
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
    | RunScript
)

KINDS: dict[str, type] = {kind.__name__: kind for kind in Step.__args__}
_KINDS = tuple(KINDS.values())
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def encode(steps: Sequence[Step]) -> bytes:
    """The steps as bytes for another process of the same program."""
    # Version 0: a newer one has each name looked up among all that the reader knows, which it must copy for that.
    return marshal.dumps([(_NUMBERS[type(step)], *step) for step in steps], 0)


def for_zygote(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Those of a plan that the zygote does. All else may hold secrets, and is read by the new process alone."""
    return tuple(step for step in steps if isinstance(step, (Clone, Join, DetachSource, DetachImage)))


def for_child(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Those that the new process does, from its birth on."""
    return tuple(step for step in steps if not isinstance(step, (DetachSource, DetachImage)))


def decode(data: bytes) -> tuple[Step, ...]:
    """The steps of :func:`encode`; an exception for anything else."""
    return tuple(tuple.__new__(_KINDS[number], fields) for number, *fields in marshal.loads(data))  # noqa: S302


def describe(step: Step) -> str:
    """A step for a message, shortly: its name, and the path or name that it is about."""
    about: Iterable[object] = ()
    match step:
        case Bind():
            about = (f"{step.source} at {step.target}" if step.source != step.target else step.target,)
        case DetachSource() | DetachImage() | OpenSource() | MakeDirectory() | WriteFile() | Link():
            about = (step.path,)
        case Protect():
            about = (step.directory,)
        case MountTmpfs() | MountProc() | OwnProc():
            about = (step.target,)
        case Hostname():
            about = (step.name,)
        case Listen():
            about = (step.port,)
        case Execute() | RunScript():
            about = (step.argv[0],)
    return " ".join([type(step).__name__, *map(str, about)])
