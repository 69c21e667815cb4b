"""The system calls that Python hasn't got, through ctypes. Each raises ``OSError`` where the call fails."""

import ctypes
import os
import struct

# PyDLL keeps the interpreter's lock: a process that is alone gains nothing by giving it up, and a clone would be born
# in the middle of it.
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

_CLONE3, _OPEN_TREE, _MOVE_MOUNT, _CLOSE_RANGE, _MOUNT_SETATTR = 435, 428, 429, 436, 442  # the same everywhere
_FSOPEN, _FSCONFIG, _FSMOUNT, _OPENAT2 = 430, 431, 432, 437
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_SIG_SETMASK = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

AT_FDCWD = -100
AT_EMPTY_PATH, AT_RECURSIVE = 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 2, 4, 0x10_0000
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 2, 4, 8
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 6
CLONE_PARENT, CLONE_PIDFD, CLONE_INTO_CGROUP = 0x8000, 0x1000, 0x2_0000_0000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NAME = 1, 4, 8, 15
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 24, 28, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result


def _call(what: str, number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(int(_LIBC.syscall(ctypes.c_long(number), *words)), what)


def clone(flags: int, cgroup: int | None = None) -> tuple[int, int]:
    """A child with what ``flags`` say (CLONE_NEW*), whose parent is ours: its pid and a pidfd; pid 0 in the child.

    With ``cgroup``, a directory of cgroup v2, it is born in there.
    """
    pidfd = ctypes.c_int(-1)
    flags |= CLONE_PARENT | CLONE_PIDFD | (CLONE_INTO_CGROUP if cgroup is not None else 0)
    # struct clone_args: flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup.
    # With CLONE_PARENT the exit signal must be 0: the child has its maker's.
    fields = (flags, ctypes.addressof(pidfd), 0, 0, 0, 0, 0, 0, 0, 0, cgroup or 0)
    arguments = ctypes.create_string_buffer(struct.pack("=11Q", *fields), 88)
    ctypes.pythonapi.PyOS_BeforeFork()
    try:
        pid = int(_LIBC.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(88)))
        error = ctypes.get_errno()
    finally:
        if "pid" in locals() and pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
        else:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error), "clone3")
    return pid, pidfd.value


def setns(namespace: int, kind: int) -> None:
    """Join a namespace; ``kind`` is its CLONE_NEW*."""
    _checked(_LIBC.setns(namespace, kind), "setns")


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    kinds, options = (None if text is None else text.encode() for text in (kind, data))
    flag = ctypes.c_ulong(flags)
    _checked(_LIBC.mount(os.fsencode(source), os.fsencode(target), kinds, flag, options), "mount")


def unmount(target: str, flags: int) -> None:
    _checked(_LIBC.umount2(os.fsencode(target), flags), "umount2")


def open_tree(fd: int) -> int:
    """A copy, mounted nowhere yet, of what is mounted at ``fd`` and below."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    return _call("open_tree", _OPEN_TREE, fd, b"", flags)


def move_mount(fd: int, target: str) -> None:
    _call("move_mount", _MOVE_MOUNT, fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)


def move_mount_onto(fd: int, target: int) -> None:
    """As :func:`move_mount`, onto what is open as ``target``."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _call("move_mount", _MOVE_MOUNT, fd, b"", target, b"", flags)


def open_without_links(directory: int, path: str, flags: int = 0, resolve: int = 0) -> int:
    """Open as O_PATH; ELOOP where a component is a symbolic link. ``flags`` are O_*, ``resolve`` RESOLVE_*."""
    resolve |= RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    how = ctypes.create_string_buffer(struct.pack("=3Q", os.O_PATH | os.O_CLOEXEC | flags, 0, resolve), 24)
    return _call("openat2", _OPENAT2, directory, os.fsencode(path), how, 24)


def mount_detached(kind: str, source: str) -> int:
    """A file system of a device, mounted nowhere yet; without set-uid programs and devices."""
    context = _call("fsopen", _FSOPEN, kind.encode(), 1)  # FSOPEN_CLOEXEC
    try:
        _call("fsconfig", _FSCONFIG, context, FSCONFIG_SET_STRING, b"source", os.fsencode(source), 0)
        _call(f"mount {kind}", _FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        return _call("fsmount", _FSMOUNT, context, 1, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)  # FSMOUNT_CLOEXEC
    finally:
        os.close(context)


def set_mount_attributes(fd: int, path: str, attributes: int, recursive: bool, user_namespace: int = 0) -> None:
    """Set MOUNT_ATTR_* where ``path`` (from ``fd``, or "" for that itself) is mounted."""
    arguments = ctypes.create_string_buffer(struct.pack("=4Q", attributes, 0, 0, user_namespace), 32)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _call("mount_setattr", _MOUNT_SETATTR, fd, os.fsencode(path), flags, arguments, 32)


def pivot_root(new: str, old: str) -> None:
    _call("pivot_root", _PIVOT_ROOT[os.uname().machine], os.fsencode(new), os.fsencode(old))


def close_range(first: int, last: int = 0xFFFF_FFFF) -> None:
    """Close all descriptors from ``first`` to ``last``; Linux 5.9."""
    if first <= last:
        _call("close_range", _CLOSE_RANGE, first, last, 0)


def keep_only(*fds: int) -> None:
    """Close all descriptors but these and the first three."""
    former = 2
    for fd in sorted(fds):
        close_range(former + 1, fd - 1)
        former = max(former, fd)
    close_range(former + 1)


def prctl(option: int, argument: int = 0, second: int = 0) -> int:
    words = [ctypes.c_ulong(one) for one in (argument, second, 0, 0)]
    return _checked(_LIBC.prctl(option, *words), "prctl")


def set_signal_mask(blocked: bool) -> None:
    """Block all signals, or none. (The signal module would make an object of each.)"""
    mask = ctypes.create_string_buffer((b"\xff" if blocked else b"\0") * 128, 128)  # sigset_t
    _checked(_LIBC.sigprocmask(_SIG_SETMASK, mask, None), "sigprocmask")


def set_name(name: str) -> None:
    """What ps calls us; 15 bytes of it."""
    text = ctypes.create_string_buffer(os.fsencode(name)[:15])
    prctl(PR_SET_NAME, ctypes.addressof(text))


def set_hostname(name: str) -> None:
    _checked(_LIBC.sethostname(name.encode(), ctypes.c_size_t(len(name.encode()))), "sethostname")


def capget() -> tuple[int, int, int]:
    """Effective, permitted and inheritable capabilities, as bits."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x2008_0522, 0), 8)
    data = ctypes.create_string_buffer(24)
    _checked(_LIBC.capget(header, data), "capget")
    words = struct.unpack("=6I", data.raw)
    return (words[0] | words[3] << 32, words[1] | words[4] << 32, words[2] | words[5] << 32)


def capset(effective: int, permitted: int, inheritable: int) -> None:
    sets = (effective, permitted, inheritable)
    words = [part for shift in (0, 32) for part in ((one >> shift) & 0xFFFF_FFFF for one in sets)]
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x2008_0522, 0), 8)
    _checked(_LIBC.capset(header, ctypes.create_string_buffer(struct.pack("=6I", *words), 24)), "capset")


def set_seccomp_filter(program: bytes) -> None:
    """Install an array of ``struct sock_filter``."""
    instructions = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(fprog))


def landlock_create(attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return _call("landlock_create_ruleset", _LANDLOCK_CREATE, buffer, len(attributes), 0)


def landlock_add(ruleset: int, kind: int, rule: bytes) -> None:
    _call("landlock_add_rule", _LANDLOCK_ADD, ruleset, kind, ctypes.create_string_buffer(rule, len(rule)), 0)


def landlock_restrict(ruleset: int) -> None:
    _call("landlock_restrict_self", _LANDLOCK_RESTRICT, ruleset, 0)
