"""Steps of a sandbox plan: one value per operation on the new process, as plain data for both sides.

A plan is a tuple of steps, made by :mod:`agentos.sandbox.plan` and executed by :mod:`agentos.sandbox.inside.walk`.
Every path is one inside the sandbox, unless it says otherwise. Only the standard library is used: the process that
executes the steps has nothing else.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Clone(NamedTuple):
    """Clone the process into new namespaces; done by the zygote. ``flags`` are CLONE_NEW*, the maps lines of uid_map.

    In a new PID namespace it stays as PID 1, confined by some of the plan's steps, and a child of it does the plan.
    Without flags it is cloned into our namespaces with our uid and gid, and no maps are written. ``writers`` are
    newuidmap and newgidmap, where the maps have ids that are not ours to give.
    """

    flags: int
    uid_map: str
    gid_map: str
    deny_setgroups: bool
    writers: tuple[str, str] | None = None


class Join(NamedTuple):
    """Clone the process without new namespaces, and join the sandbox's namespaces that come with the request."""


class Descend(NamedTuple):
    """Continue in a child's child: the child is in the joined PID namespace, its child in a new one below it.

    ``flags`` are CLONE_NEW* of the latter. It mounts a /proc of its own at ``proc``, over that of the one above.
    """

    flags: int
    proc: str
    read_only: bool = False  # the /proc


SocketAddress = tuple[str, str, int]
"""``tcp`` or ``udp``, an IPv4 address and a port, of a socket in a sandbox's network."""


class Listen(NamedTuple):
    """Bind sockets in the sandbox's network, and send them to the kernel in this order; port 0 is any free port."""

    addresses: tuple[SocketAddress, ...]


class StandBy(NamedTuple):
    """The end of the steps that can be done before the agent is known; a jail that is built ahead waits here."""


class UnshareCgroup(NamedTuple):
    """Unshare the cgroup namespace; its root is the cgroup that the process was put into."""


class PrivateMounts(NamedTuple):
    """Propagate no mount to the host, whose mounts the new mount namespace has copied."""


UNKNOWN_OWNER = (0, 0)


class DetachSource(NamedTuple):
    """Copy the mount at a host path, to be bound at ``target``; done by the zygote, with root.

    The zygote may open paths that the child may not: the child's capabilities don't apply to host files. ``owner``:
    files of the path's owner belong to this uid and gid inside, by an id-mapped mount. A path that others can read
    anyway is mapped only if ``always``. :data:`UNKNOWN_OWNER`: any other path is an error.
    """

    path: str
    target: str
    follow: bool  # follow symbolic links; otherwise one in any component is an error
    owner: tuple[int, int] | None
    always: bool = False
    writable: bool = False


class DetachRoot(NamedTuple):
    """Make the tmpfs that will become the root; done by the zygote, with root.

    The host's root owns it: the process can make its directories before its own uid is known, and the agent can't.
    """

    size: int  # bytes
    inodes: int


class DetachImage(NamedTuple):
    """Mount an ext4 image file, to be bound at ``target``; done by the zygote, with root.

    Its files are shown as a writable layer's (:class:`DetachLayer`).
    """

    path: str
    target: str
    owner: tuple[int, int]  # uid and gid
    block: tuple[int, int] | None = None


class DetachLayer(NamedTuple):
    """Copy the mount at a host path, to be a layer of :class:`MountOverlay`; done by the zygote, with root.

    Files of the path's owner belong to ``owner`` there and the other way round, by an id-mapped mount; the files of
    all others stay theirs. No symbolic link in the path is followed. A path whose owner is an id of ``block``, a range
    of the store's, is shown with all of that range as the ids from ``owner`` on.
    """

    path: str
    target: str
    owner: tuple[int, int]  # uid and gid
    writable: bool
    block: tuple[int, int] | None = None  # first and count


class OpenSource(NamedTuple):
    """Open a host path to be bound later; the bind uses the opened file, not the path."""

    path: str
    follow: bool = True  # follow symbolic links; otherwise one in any component is an error


class ForbidExecutableMemfds(NamedTuple):
    """Set ``vm.memfd_noexec`` of the own PID namespace to 2: no memfd can be executed with execve(2).

    Linux lets only the host's uid 0 write it, so it comes before :class:`TakeIdentity`.
    """


class TakeIdentity(NamedTuple):
    """Set this uid and gid of the user namespace, and keep its capabilities; PID 1 takes ``init``, if it is given."""

    uid: int
    gid: int
    drop_groups: bool
    init: int | None = None


class ForbidNamespaces(NamedTuple):
    """Forbid user namespaces below this one."""


class Hostname(NamedTuple):
    """Set the host name."""

    name: str


class MountRoot(NamedTuple):
    """Mount a tmpfs that will become the root, that of :class:`DetachRoot` if there is one."""

    size: int  # bytes
    inodes: int


class MakeDirectory(NamedTuple):
    """Make a directory with its missing parents."""

    path: str


class WriteFile(NamedTuple):
    """Write a small file of the sandbox's own."""

    path: str
    text: str


class Link(NamedTuple):
    """Make a symbolic link."""

    path: str
    target: str


class Bind(NamedTuple):
    """Bind an opened source, with all mounts below it, at a path."""

    source: str  # the host path, as opened
    target: str
    writable: bool = False
    device: bool = False  # a device node: not mounted nodev
    executable: bool = True  # otherwise mounted noexec; a device always is


class Protect(NamedTuple):
    """Protect names below ``directory``: read-only, and no directory on the path to them can be replaced."""

    directory: str
    names: tuple[str, ...]  # relative paths that exist


class MountTmpfs(NamedTuple):
    """Mount a private tmpfs."""

    target: str
    size: int  # bytes
    inodes: int
    executable: bool
    counted: bool = False  # the kernel gets a descriptor of it, to measure its contents
    shared: bool = False  # all users inside may make files in it, as in /tmp


class MountOverlay(NamedTuple):
    """Mount an overlay (overlayfs, ``userxattr``): ``lowers`` are shown, the first on top; changes go to ``upper``.

    All are host paths; ``upper`` has the directories ``tree`` and ``work``. With root they are the trees of a
    :class:`DetachLayer` each, whose targets are those of :func:`layer_targets`. Mounted after :class:`TakeIdentity`:
    what is copied into ``upper`` is copied with the mounter's rights.
    """

    target: str
    lowers: tuple[str, ...]
    upper: str
    executable: bool


class MountImage(NamedTuple):
    """Make an overlay over an image's tree, at the host path ``source``, the root in place of the one made so far.

    The mounts at ``carried`` are moved over to it, those at ``closed`` read-only. What is written to it goes to a tmpfs
    of ``size`` bytes and ``inodes``, or, with a size of 0, it is read-only. ``files`` are those of the sandbox's own,
    by path. With root the tree is that of a :class:`DetachLayer` whose target is :data:`IMAGE`. As
    :class:`MountOverlay`, after :class:`TakeIdentity`. With an ``upper`` what is written goes there; with root its tree
    is that of :data:`IMAGE_UPPER`. Files of the tree of :data:`IMAGE_OWNED`, if there is one, stand in for the image's.
    """

    source: str
    carried: tuple[str, ...]
    directories: tuple[str, ...]  # of the sandbox's own, without a mount
    files: tuple[tuple[str, str], ...]
    size: int
    inodes: int
    counted: bool  # the kernel gets a descriptor of the tmpfs, to measure its contents
    closed: tuple[str, ...] = ()
    upper: str = ""


IMAGE, IMAGE_OWNED, IMAGE_UPPER = "image", "image.owned", "image.upper"


def layer_targets(target: str, lowers: int) -> tuple[str, ...]:
    """The targets of so many lower layers of an overlay, and of the upper one."""
    return *(f"{target}.lower{number}" for number in range(lowers)), f"{target}.upper"


class MountTerminals(NamedTuple):
    """Mount a devpts of its own: pseudo-terminals, at most ``most`` at a time, opened by ``ptmx`` in it."""

    target: str
    most: int


class MountProc(NamedTuple):
    """Mount a /proc that shows only the processes of this PID namespace."""

    target: str


class CloseSources(NamedTuple):
    """Close all descriptors of the host's files."""


class SwitchRoot(NamedTuple):
    """Make the tmpfs the root; the host's files are no longer reachable."""


class ReadOnlyRoot(NamedTuple):
    """Make the root's own mount read-only."""


class LoopbackUp(NamedTuple):
    """Bring the loopback interface up: 127.0.0.1 and ::1."""


class RouteToLoopback(NamedTuple):
    """Deliver packets to this IPv4 network on loopback: a socket bound to 0.0.0.0 gets them."""

    address: str
    prefix: int  # bits


class SetLimits(NamedTuple):
    """Set resource limits, soft and hard alike: pairs of a name (``NOFILE``) and a value."""

    limits: tuple[tuple[str, int], ...]


class DropCapabilities(NamedTuple):
    """Drop all capabilities from every set, and prevent regaining them.

    But those of ``keep``, a mask, stay in the bounding, permitted and effective set, and uid 0 has them after each exec
    as usual; of these PID 1 keeps :data:`KILL` alone.
    """

    keep: int = 0


KILL = 1 << 5  # CAP_KILL: PID 1, as another user, forwards signals
INSIDE_ROOT = 0x8000_00FB
"""CAP_CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETFCAP: what root inside has, for ids of its own alone."""


class NoNewPrivileges(NamedTuple):
    """Set no_new_privs: set-uid bits and file capabilities have no effect."""


class Landlock(NamedTuple):
    """Restrict the process with Landlock.

    ``attributes`` is a packed ruleset in hex; ``paths`` are (path, rights).
    """

    attributes: str
    paths: tuple[tuple[str, int], ...]


class Seccomp(NamedTuple):
    """Install a seccomp filter; ``program`` is an array of ``struct sock_filter`` in hex."""

    program: str


class Execute(NamedTuple):
    """Exec the program in a session of its own. If it joined a sandbox, its parent stays as PID 1.

    ``no_shim``: without a shim, if there is no PID namespace that needs one. ``keeper``: likewise, but with a parent
    process that kills all processes it started. ``stdin`` is the data on its standard input. ``terminal``: its standard
    streams are a terminal of that many rows and columns, and that controls its session. ``two_way``: standard input and
    output are one socket.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    no_shim: bool = False
    stdin: bytes = b""
    keeper: bool = False
    terminal: tuple[int, int] | None = None
    two_way: bool = False


class RunScript(NamedTuple):
    """As :class:`Execute`, but run a Python file in the zygote's interpreter, without exec; ``argv[0]`` is that file.

    ``import_first`` and ``import_last`` are directories to import from, before and after the standard library.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str
    import_first: tuple[str, ...]
    import_last: tuple[str, ...]
    no_shim: bool = False


Detach = DetachRoot | DetachSource | DetachImage | DetachLayer
_Process = Clone | Join | Descend | Listen | StandBy | Execute | RunScript
_Root = OpenSource | MountRoot | MakeDirectory | WriteFile | Link | Bind | Protect | CloseSources | SwitchRoot
_Mount = MountTmpfs | MountOverlay | MountTerminals | MountImage | MountProc | PrivateMounts | ReadOnlyRoot
_Identity = TakeIdentity | ForbidNamespaces | ForbidExecutableMemfds | UnshareCgroup | Hostname
_Limit = SetLimits | DropCapabilities | NoNewPrivileges | Landlock | Seccomp | LoopbackUp | RouteToLoopback
Step = Detach | _Process | _Root | _Mount | _Identity | _Limit

KINDS: tuple[type, ...] = Step.__args__


def describe(step: Step) -> str:
    """Describe a step for a message: its name, and the path or name that it is about."""
    about: Iterable[object] = ()
    match step:
        case Bind():
            about = (f"{step.source} at {step.target}" if step.source != step.target else step.target,)
        case DetachSource() | DetachImage() | DetachLayer() | OpenSource() | MakeDirectory() | WriteFile() | Link():
            about = (step.path,)
        case Protect():
            about = (step.directory,)
        case MountTmpfs() | MountOverlay() | MountTerminals() | MountProc():
            about = (step.target,)
        case MountImage():
            about = (step.source,)
        case Hostname():
            about = (step.name,)
        case Listen():
            about = (port for _, _, port in step.addresses)
        case RouteToLoopback():
            about = (f"{step.address}/{step.prefix}",)
        case Execute() | RunScript():
            about = (step.argv[0],)
    return " ".join([type(step).__name__, *map(str, about)])
