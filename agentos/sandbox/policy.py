"""Sandbox policy: what a program may see and use, as frozen values."""

import os.path
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
from attrs import field, frozen

from .steps import SocketAddress

MIB = 1 << 20
PROFILES = ("standard", "strict")  # seccomp profiles, from the wider to the narrower
NETWORKS = ("none", "filtered", "host")  # from the narrower to the wider
Network = Literal["none", "filtered", "host"]


MAX_TERMINALS = 16  # pseudo-terminals that exist at a time in one sandbox


class BadPolicy(ValueError):
    """No sandbox can be made of this policy; the text says why."""


def _check_positive(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if value < 1:
        raise BadPolicy(f"{attribute.name}: {value} is less than 1")


_MAX_RLIMIT = (1 << 63) - 1  # a higher value overflows in Python's setrlimit


@frozen
class Limits:
    """Limits of a program and all processes that it starts. Sizes are bytes."""

    memory: int = field(default=512 * MIB, validator=_check_positive)
    max_pids: int = field(default=64, validator=_check_positive)
    cpu_quota: int = field(default=100_000, validator=_check_positive)  # microseconds of CPU time in 100 ms
    cpu_weight: int = field(default=100, validator=_check_positive)
    open_files: int = field(default=1024, validator=_check_positive)
    file_size: int = field(default=256 * MIB, validator=_check_positive)
    disk: int = field(default=256 * MIB, validator=_check_positive)
    inodes: int = field(default=16384, validator=_check_positive)
    tmp: int = field(default=64 * MIB, validator=_check_positive)

    @property
    def data(self) -> int:
        """Private writable memory that one process may map (RLIMIT_DATA), if no cgroup counts its memory.

        More than ``memory``: most of a thread's stack and of an allocator's arenas is never touched.
        """
        return min(2 * self.memory, _MAX_RLIMIT)


def _check_absolute(_: object, attribute: "attrs.Attribute[Any]", path: Any) -> None:
    if path is not None and (not path.startswith("/") or os.path.normpath(path) != path or "\0" in path):
        raise BadPolicy(f"{attribute.name}: {path!r} is not an absolute path without . and ..")


def _check_names(_: object, attribute: "attrs.Attribute[Any]", names: Sequence[str]) -> None:
    for name in names:
        if not name or name.startswith(("/", "../")) or name == ".." or os.path.normpath(name) != name or "\0" in name:
            raise BadPolicy(f"{attribute.name}: {name!r} is not a name below a directory")


@frozen
class Directory:
    """A writable host directory; the paths at ``protected``, relative to it, stay unchanged.

    ``kept``: it was made for this sandbox, where no other user of the host's comes.
    """

    path: str = field(validator=_check_absolute)
    protected: tuple[str, ...] = field(default=(), validator=_check_names)
    kept: bool = False


@frozen
class Image:
    """An ext4 image file; needs a kernel with root. No other sandbox may use it meanwhile."""

    path: str = field(validator=_check_absolute)


@frozen
class Overlay:
    """The host directory ``path``, unchanged: what is written goes to ``upper``, and both are shown as one.

    ``upper`` is a directory with the directories ``tree`` and ``work``, which no other running sandbox uses. ``sealed``
    are former such trees, which nothing changes any more, the newest first: they lie between both.
    """

    path: str = field(validator=_check_absolute)
    upper: str = field(validator=_check_absolute)
    sealed: tuple[str, ...] = ()


@frozen
class RootImage:
    """The files of an image, in place of the host's; a strict profile has them read-only.

    ``directories`` and ``files`` are names at its top: programs write below these directories alone, and a strict
    profile executes only what is there. ``environment`` has variables that replace the defaults, ``user`` is the name
    of the sandbox's user, and ``accounts`` are the image's passwd and group.

    ``owned`` has those of its files that belong to others than root, as root inside sees them, in the ids of the store.
    With an ``upper``, as of an :class:`Overlay`, what is written anywhere stays there: so an image is built.
    """

    path: str = field(validator=_check_absolute)
    directories: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    user: str = ""
    accounts: tuple[str, str] = ("", "")
    owned: str = ""
    upper: str = ""


def _convert_workspace(given: Directory | Image | Overlay | str | None) -> Directory | Image | Overlay | None:
    if isinstance(given, str):
        try:
            return Directory(given)
        except BadPolicy as error:
            raise BadPolicy(f"workspace: {error}") from None
    return given


@frozen
class Interpreter:
    """A Python interpreter: ``sys.executable``, ``sys.prefix`` and ``sys.base_prefix``."""

    executable: str = field(validator=_check_absolute)
    prefix: str = field(validator=_check_absolute)
    base_prefix: str = field(validator=_check_absolute)


@frozen
class Policy:
    """What exists inside a sandbox, and how it is confined. Paths are host paths.

    ``script`` is a file in /agent, or ``code`` a directory as /agent, read-only. ``workspace`` is a directory (its path
    is enough), an image or an overlay for /workspace, or None for one in memory. ``sdk`` is the directory of package
    ``agentos_sdk``. ``socket`` is the kernel's socket for this program, at /run/agentos.sock.

    With an ``image`` there is nothing of the host's but devices; the interpreter must be one of the image's.

    ``network`` is the host's, or one of its own: with ``none`` only a loopback; with ``filtered`` also a route to
    loopback for :data:`.plan.FILTERED_ADDRESSES`, a resolv.conf that names 127.0.0.1, and the host's certificates.
    ``sockets`` of its own network are bound before the program starts, and the kernel gets them.

    With ``terminals`` there is a devpts of its own at /dev/pts, from which its programs get pseudo-terminals: at most
    :data:`MAX_TERMINALS` at a time, whose buffers no limit of memory counts. Profile ``strict`` has none.

    With ``inside_root`` its programs are root of an image, with set-id files and the capabilities that packages need to
    be installed: with root they have 65,536 ids, without only root's, and calls that take others do nothing in silence.
    No directory of the host's that can be written is shown then, but one that was made for it: a set-id file in it
    would be one of the host's.

    Script, code and workspace may lie where other programs can write: no component of their paths may be a symbolic
    link.
    """

    interpreter: Interpreter | None = None
    script: str | None = field(default=None, validator=_check_absolute)
    code: str | None = field(default=None, validator=_check_absolute)
    workspace: Directory | Image | Overlay | None = field(default=None, converter=_convert_workspace)
    sdk: str | None = field(default=None, validator=_check_absolute)
    socket: str | None = field(default=None, validator=_check_absolute)
    network: Network = field(default="none", validator=attrs.validators.in_(NETWORKS))
    sockets: tuple[SocketAddress, ...] = ()
    terminals: bool = False
    limits: Limits = Limits()
    profile: str = field(default="standard", validator=attrs.validators.in_(PROFILES))
    hostname: str = "agent"
    image: RootImage | None = None
    inside_root: bool = False

    def __attrs_post_init__(self) -> None:
        if self.script is not None and self.code is not None:
            raise BadPolicy("script and code: /agent is either a directory or has one file")
        if self.network == "host" and self.sockets:
            raise BadPolicy("sockets: with the host's network there is no loopback of its own")
        if self.terminals and self.profile == "strict":
            raise BadPolicy("terminals: the profile strict has none")
        if self.inside_root and self.image is None:
            raise BadPolicy("inside_root: only an image has a root inside")
        if self.inside_root and self.profile == "strict":
            raise BadPolicy("inside_root: the profile strict has an image read-only, and no root inside")
        if self.inside_root and isinstance(self.workspace, Directory) and not self.workspace.kept:
            raise BadPolicy(
                "inside_root: the workspace can only be in memory, an image, an overlay or a kept directory"
            )

    @property
    def builds(self) -> bool:
        """Whether what is written to its image's files stays."""
        return self.image is not None and bool(self.image.upper)


@frozen
class Program:
    """The program to run inside. Paths are those in the sandbox; ``directory`` is the working directory.

    ``fast``: ``argv`` begins with a Python file in /agent, which the kernel's own interpreter runs without an exec. It
    has the standard library, the SDK, and the packages of that interpreter's virtual environment. ``stdin`` is the data
    on its standard input; only for programs that are exec'ed. ``terminal``: instead of pipes it gets a terminal of that
    many rows and columns. ``two_way``: its standard input and output are one socket, whose other end the kernel
    reads and writes.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(factory=dict)
    directory: str = field(default="/workspace", validator=_check_absolute)
    fast: bool = False
    stdin: bytes = b""
    terminal: tuple[int, int] | None = None
    two_way: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise BadPolicy("argv: empty, there is no program to run")
        if any("\0" in text for text in (*self.argv, *self.environment, *self.environment.values())):
            raise BadPolicy("argv and environment: a text contains NUL")
        if any(not name or "=" in name for name in self.environment):
            raise BadPolicy("environment: a name must not be empty or contain =")
        if self.two_way and (self.fast or self.stdin or self.terminal):
            raise BadPolicy("two_way: its standard input is a socket, so it has neither data nor a terminal")
