"""System calls that Python lacks, through ctypes. Each raises ``OSError`` if the call fails."""

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

# PyDLL keeps the interpreter's lock: a single-threaded process gains nothing by releasing it, and a clone would start
# with the lock released.
_LIBC = ctypes.PyDLL(None, use_errno=True)

_CLONE3, _OPEN_TREE, _MOVE_MOUNT, _CLOSE_RANGE, _MOUNT_SETATTR = 435, 428, 429, 436, 442  # on every architecture
_FSOPEN, _FSCONFIG, _FSMOUNT, _OPENAT2 = 430, 431, 432, 437
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_NO_OPTIONS: Mapping[str, str] = {}
_SIG_SETMASK = 2
_MADV_POPULATE_WRITE = 23
_MNT_DETACH = 2
_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}

AT_FDCWD = -100
AT_EMPTY_PATH, AT_RECURSIVE = 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 2, 4, 0x10_0000
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 2, 4, 8
FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 0, 1, 6
CLONE_PARENT, CLONE_PIDFD, CLONE_INTO_CGROUP = 0x8000, 0x1000, 0x2_0000_0000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NAME = 1, 4, 8, 15
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 24, 28, 38, 47
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
SECCOMP_MODE_FILTER = 2
_CAPABILITIES = struct.pack("=Ii", 0x2008_0522, 0)  # struct __user_cap_header_struct: version 3, this process


_Call = Callable[..., int]
_int, _long, _bytes = ctypes.c_int, ctypes.c_long, ctypes.c_char_p


def _function(name: str, *types: Any, returns: Any = _int) -> _Call:
    """Look up a function of the C library once, not in each child again."""
    function = _LIBC[name]  # indexing returns a new object each time
    function.argtypes, function.restype = types, returns
    return function


def _by_number(*types: Any) -> _Call:
    """syscall(2) with these argument types, after the number."""
    return _function("syscall", _long, *types, returns=_long)


_clone3 = _by_number(ctypes.c_void_p, ctypes.c_size_t)
_clone3_without_result = _by_number(_bytes, ctypes.c_size_t)
_clone = _by_number(ctypes.c_ulong, *[ctypes.c_void_p] * 3, ctypes.c_ulong)
_open_tree = _by_number(_int, _bytes, ctypes.c_uint)
_move_mount = _by_number(_int, _bytes, _int, _bytes, ctypes.c_uint)
_mount_setattr = _by_number(_int, _bytes, ctypes.c_uint, _bytes, ctypes.c_size_t)
_openat2 = _by_number(_int, _bytes, _bytes, ctypes.c_size_t)
_fsopen = _by_number(_bytes, ctypes.c_uint)
_fsconfig = _by_number(_int, ctypes.c_uint, _bytes, _bytes, _int)
_fsmount = _close_range = _by_number(ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
_pivot_root = _by_number(_bytes, _bytes)
_landlock_create = _by_number(_bytes, ctypes.c_size_t, ctypes.c_uint)
_landlock_add = _by_number(_int, _int, _bytes, ctypes.c_uint)
_landlock_restrict = _by_number(_int, ctypes.c_uint)
_setns = _function("setns", _int, _int)
_unshare = _function("unshare", _int)
_mount = _function("mount", _bytes, _bytes, _bytes, ctypes.c_ulong, _bytes)
_umount2 = _function("umount2", _bytes, _int)
_prctl = _function("prctl", _int, *[ctypes.c_ulong] * 4)
_prctl_name = _function("prctl", _int, _bytes)
_madvise = _function("madvise", ctypes.c_void_p, ctypes.c_size_t, _int)
_sigprocmask = _function("sigprocmask", _int, _bytes, ctypes.c_void_p)
_sethostname = _function("sethostname", _bytes, ctypes.c_size_t)
_capget = _function("capget", _bytes, ctypes.c_char_p)
_capset = _function("capset", _bytes, _bytes)
_capget_buffer = ctypes.create_string_buffer(24)  # here, as ctypes makes a type per length: expensive in a child
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_here, _after_fork_in_child = ctypes.pythonapi.PyOS_AfterFork_Parent, ctypes.pythonapi.PyOS_AfterFork_Child


class _Fprog(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", _bytes))


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result


def clone(flags: int, cgroup: int | None = None) -> tuple[int, int]:
    """Clone a child with ``flags`` (CLONE_NEW*) and our parent; returns its pid and a pidfd; pid 0 in the child.

    With ``cgroup``, a directory of cgroup v2, it is cloned into that cgroup.
    """
    pidfd = ctypes.c_int(-1)
    plain = not flags and cgroup is None
    flags |= CLONE_PARENT | CLONE_PIDFD | (CLONE_INTO_CGROUP if cgroup is not None else 0)
    # struct clone_args: flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup.
    # With CLONE_PARENT the exit signal must be 0: the child inherits that of the cloning process.
    fields = (flags, ctypes.addressof(pidfd), 0, 0, 0, 0, 0, 0, 0, 0, cgroup or 0)
    arguments = ctypes.create_string_buffer(struct.pack("=11Q", *fields), 88)
    pid = error = -1
    _before_fork()
    try:
        pid = _clone3(_CLONE3, arguments, 88)
        error = ctypes.get_errno()
        if pid < 0 and error == errno.ENOSYS and plain:  # as in most containers; clone(2) is enough for this
            pid = _clone(_CLONE[os.uname().machine], flags, None, ctypes.addressof(pidfd), None, 0)
            error = ctypes.get_errno()
    finally:
        _after_fork_in_child() if pid == 0 else _after_fork_here()
    if pid < 0:
        raise OSError(error, os.strerror(error), "clone3")
    return pid, pidfd.value


def clone_two_below(flags: int) -> bool:
    """Clone a child, which clones a child of its own with ``flags`` (CLONE_NEW*) and exits; true in the latter.

    Both have our parent. The one in between makes no other call and runs nothing of Python's for a fork: each object
    that it touches is copied.
    """
    # struct clone_args, of which version 0 ends after tls: flags pidfd child_tid parent_tid exit_signal stack ...
    plain, below = (struct.pack("=8Q", CLONE_PARENT | more, *[0] * 7) for more in (0, flags))
    in_child = False
    _before_fork()
    try:
        if (pid := _clone3_without_result(_CLONE3, plain, len(plain))) == 0:
            in_child = True
            if (pid := _clone3_without_result(_CLONE3, below, len(below))) > 0:
                os._exit(0)
        error = ctypes.get_errno()
    finally:
        _after_fork_in_child() if in_child else _after_fork_here()
    if pid < 0:
        raise OSError(error, os.strerror(error), "clone3")
    return in_child


def setns(namespace: int, kind: int) -> None:
    """Join a namespace; ``kind`` is its CLONE_NEW*."""
    _check(_setns(namespace, kind), "setns")


def unshare(flags: int) -> None:
    _check(_unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    kinds, options = (None if text is None else text.encode() for text in (kind, data))
    _check(_mount(os.fsencode(source), os.fsencode(target), kinds, flags, options), "mount")


def detach(target: str) -> None:
    """Unmount: gone for all paths at once, also where something of it is open."""
    _check(_umount2(os.fsencode(target), _MNT_DETACH), "umount2")


def open_tree(fd: int, path: str = "") -> int:
    """Copy the mounts at ``path`` and below as a detached tree (relative to ``fd``; "" is ``fd`` itself)."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    return _check(_open_tree(_OPEN_TREE, fd, os.fsencode(path), flags), "open_tree")


def move_mount(fd: int, target: str) -> None:
    result = _move_mount(_MOVE_MOUNT, fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    _check(result, "move_mount")


def move_mount_onto(fd: int, target: int) -> None:
    """As :func:`move_mount`, onto the file open as ``target``."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _check(_move_mount(_MOVE_MOUNT, fd, b"", target, b"", flags), "move_mount")


def open_without_links(directory: int, path: str, flags: int = 0, resolve: int = 0) -> int:
    """Open as O_PATH; ELOOP if a component is a symbolic link. ``flags`` are O_*, ``resolve`` RESOLVE_*."""
    resolve |= RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    how = struct.pack("=3Q", os.O_PATH | os.O_CLOEXEC | flags, 0, resolve)
    return _check(_openat2(_OPENAT2, directory, os.fsencode(path), how, len(how)), "openat2")


def mount_detached(kind: str, source: str, options: Mapping[str, str] = _NO_OPTIONS, flag: str = "") -> int:
    """Mount a file system detached, with nosuid and nodev; ``flag`` is an option without a value."""
    context = _check(_fsopen(_FSOPEN, kind.encode(), 1), "fsopen")  # FSOPEN_CLOEXEC
    try:
        for name, value in {"source": source, **options}.items():
            set_option = _fsconfig(_FSCONFIG, context, FSCONFIG_SET_STRING, name.encode(), os.fsencode(value), 0)
            _check(set_option, f"{kind} {name}")
        if flag:
            _check(_fsconfig(_FSCONFIG, context, FSCONFIG_SET_FLAG, flag.encode(), None, 0), f"{kind} {flag}")
        _check(_fsconfig(_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0), f"mount {kind}")
        attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        return _check(_fsmount(_FSMOUNT, context, 1, attributes), "fsmount")  # FSMOUNT_CLOEXEC
    finally:
        os.close(context)


def set_mount_attributes(fd: int, path: str, attributes: int, recursive: bool, user_namespace: int = 0) -> None:
    """Set MOUNT_ATTR_* of the mount at ``path`` (relative to ``fd``; "" is ``fd`` itself)."""
    arguments = struct.pack("=4Q", attributes, 0, 0, user_namespace)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    result = _mount_setattr(_MOUNT_SETATTR, fd, os.fsencode(path), flags, arguments, len(arguments))
    _check(result, "mount_setattr")


def pivot_root(new: str, old: str) -> None:
    number = _PIVOT_ROOT[os.uname().machine]
    _check(_pivot_root(number, os.fsencode(new), os.fsencode(old)), "pivot_root")


def populate(address: int, size: int) -> None:
    """Copy shared pages as a write to them would, and map missing ones; no effect where that isn't possible."""
    _madvise(address, size, _MADV_POPULATE_WRITE)


def close_range(first: int, last: int = 0xFFFF_FFFF) -> None:
    """Close all descriptors from ``first`` to ``last``; Linux 5.9."""
    if first <= last:
        _check(_close_range(_CLOSE_RANGE, first, last, 0), "close_range")


def keep_only(*fds: int) -> None:
    """Close all descriptors except these and the first three."""
    former = 2
    for fd in sorted(fds):
        close_range(former + 1, fd - 1)
        former = max(former, fd)
    close_range(former + 1)


def prctl(option: int, argument: int = 0, second: int = 0) -> int:
    return _check(_prctl(option, argument, second, 0, 0), "prctl")


def empty_bounding_set(keep: int = 0) -> None:
    """Drop every capability that this kernel has from the bounding set, but those of this mask."""
    capability = 0
    while keep & 1 << capability or _prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if ctypes.get_errno() != errno.EINVAL or capability == 0:  # EINVAL: no more capabilities
        _check(-1, "prctl")


def set_signal_mask(blocked: bool) -> None:
    """Block all signals, or none. (The signal module would create an object for each.)"""
    mask = (b"\xff" if blocked else b"\0") * 128  # sigset_t
    _check(_sigprocmask(_SIG_SETMASK, mask, None), "sigprocmask")


def set_name(name: str) -> None:
    """Set the process name that ps shows; 15 bytes."""
    _check(_prctl_name(PR_SET_NAME, os.fsencode(name)), "prctl")


def set_title(name: str, *argv: str) -> None:
    """Set the process name, and what /proc shows as its command line, as far as there is room.

    Programs can read that of their PID 1, where Python's arguments would tell them of the host.
    """
    set_name(name)
    begin, end = find_argv()
    text = b"\0".join(map(os.fsencode, argv))[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


@functools.cache
def find_argv() -> tuple[int, int]:
    """The address range from which Linux reads our command line; a cloned process has the same."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])


def set_hostname(name: str) -> None:
    _check(_sethostname(name.encode(), len(name.encode())), "sethostname")


def raise_capabilities() -> None:
    """Make all permitted capabilities effective, and none inheritable."""
    _check(_capget(_CAPABILITIES, _capget_buffer), "capget")
    _, low, _, _, high, _ = struct.unpack(
        "=6I", _capget_buffer.raw
    )  # effective, permitted, inheritable: low bits, then high
    _check(_capset(_CAPABILITIES, struct.pack("=6I", low, low, 0, high, high, 0)), "capset")


def list_permitted(*capabilities: int) -> list[int]:
    """Those of these capabilities, by number below 32, that are permitted."""
    _check(_capget(_CAPABILITIES, _capget_buffer), "capget")
    permitted = struct.unpack("=6I", _capget_buffer.raw)[1]
    return [number for number in capabilities if permitted & 1 << number]


def keep_capability(number: int) -> None:
    """Have this capability alone, of those below 32, also after exec."""
    _check(_capset(_CAPABILITIES, struct.pack("=6I", *[1 << number] * 3, 0, 0, 0)), "capset")
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number)


def drop_capabilities(keep: int = 0) -> None:
    """Clear the effective, permitted and inheritable sets, but of those of this mask, below 32, the first two."""
    _check(_capset(_CAPABILITIES, struct.pack("=6I", keep, keep, 0, 0, 0, 0)), "capset")


def set_seccomp_filter(program: bytes) -> None:
    """Install an array of ``struct sock_filter``."""
    fprog = _Fprog(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(fprog))


def landlock_create(attributes: bytes) -> int:
    return _check(_landlock_create(_LANDLOCK_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")


def landlock_add_path(ruleset: int, rights: int, fd: int) -> None:
    """Allow these rights at an open path and below."""
    rule = struct.pack("=Qi", rights, fd)  # struct landlock_path_beneath_attr
    _check(_landlock_add(_LANDLOCK_ADD, ruleset, _PATH_BENEATH, rule, 0), "landlock_add_rule")


def landlock_restrict(ruleset: int) -> None:
    _check(_landlock_restrict(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
