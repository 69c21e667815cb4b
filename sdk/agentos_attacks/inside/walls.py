"""Attacks on namespaces and privileges: what is shared with the host, and what can be regained."""

import ctypes
import os
import signal
import socket
import struct
from functools import partial

from .frame import (
    NAMESPACES,
    Check,
    Result,
    Targets,
    any_of,
    blocked,
    by_number,
    call,
    escaped,
    invoke,
    libc,
    none_reached,
    not_applicable,
    read_some,
    read_status,
)

MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def shared_with_host(targets: Targets) -> Result:
    shared = [name for name, link in targets["namespaces"].items() if os.readlink(f"/proc/self/ns/{name}") == link]
    return escaped(f"shared: {', '.join(shared)}") if shared else blocked("none is the host's")


def host_capabilities(_: Targets) -> Result:
    sets = {name: read_status(name) or "" for name in CAPABILITIES}
    held = {name: value for name, value in sets.items() if value.strip("0")}
    return escaped(str(held)) if held else blocked("all five sets are empty")


def no_new_privs(_: Targets) -> Result:
    return (
        blocked("NoNewPrivs: 1")
        if read_status("NoNewPrivs") == "1"
        else escaped(f"NoNewPrivs: {read_status('NoNewPrivs')}")
    )


def seccomp_filter(_: Targets) -> Result:
    found = read_status("Seccomp")
    return blocked("Seccomp: 2") if found == "2" else escaped(f"Seccomp: {found}")


def mount_tmpfs(_: Targets) -> Result:
    def mount(place: str) -> str:
        libc("mount", b"none", place.encode(), b"tmpfs", 0, None)
        libc("umount2", place.encode(), 2)
        return "mounted"

    return any_of((place, partial(mount, place)) for place in ("/tmp", "/mnt", "/workspace"))


def remount_root_rw(_: Targets) -> Result:
    locked = [
        place for place in ("/", "/usr", "/agent") if os.path.isdir(place) and os.statvfs(place).f_flag & os.ST_RDONLY
    ]
    if not locked:
        return not_applicable("nothing is read-only")
    writable = struct.pack("=4Q", 0, 1, 0, 0)  # struct mount_attr: clear MOUNT_ATTR_RDONLY

    def remount(place: str) -> str:
        libc("mount", None, place.encode(), None, MS_REMOUNT | MS_BIND, None)
        libc("mount", None, place.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)
        return "was writable"

    by_mount = [(place, partial(remount, place)) for place in locked]
    by_setattr = [
        (f"{at} by attributes", partial(call, "mount_setattr", -100, at.encode(), 0, writable, 32)) for at in locked
    ]
    return any_of([*by_mount, *by_setattr])


def chroot(_: Targets) -> Result:
    return any_of([("chroot", lambda: invoke(os.chroot, "/tmp"))])


def _clone(flags: int) -> str:
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


def nested_userns(_: Targets) -> Result:
    user = NAMESPACES["user"]
    clone = ("clone", lambda: _clone(user))
    return any_of([clone, ("unshare", lambda: invoke(call, "unshare", user))])


def nested_userns_clone3(_: Targets) -> Result:
    def clone3() -> str:
        arguments = struct.pack("=11Q", NAMESPACES["user"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
        pid = call("clone3", ctypes.create_string_buffer(arguments, 88), 88)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return "cloned"

    return any_of([("clone3", clone3)])


def nested_userns_full_caps(_: Targets) -> Result:
    """A user namespace with all capabilities, and what they allow: mounts, netfilter."""

    def become_root() -> str:
        call("unshare", NAMESPACES["user"] | NAMESPACES["mnt"] | NAMESPACES["net"])
        libc("mount", b"none", b"/tmp", b"tmpfs", 0, None)
        socket.socket(16, socket.SOCK_RAW, 12).close()  # AF_NETLINK NETLINK_NETFILTER
        return "mounted, and netfilter is reachable"

    return any_of([("user, mount and network namespace", become_root)])


def module_kexec_swap_reboot(_: Targets) -> Result:
    """With invalid arguments: an error about them means that the protections were passed."""
    return none_reached(
        [
            ("init_module", lambda: call("init_module", 0, 0, b"")),
            ("finit_module", lambda: call("finit_module", -1, b"", 0)),
            ("delete_module", lambda: call("delete_module", b"no-such-module", os.O_NONBLOCK)),
            ("kexec_load", lambda: call("kexec_load", 0, 99, 0, -1)),
            ("kexec_file_load", lambda: call("kexec_file_load", -1, -1, 0, None, 1 << 30)),
            ("swapon", lambda: call("swapon", b"/no/such/file", 0)),
            ("swapoff", lambda: call("swapoff", b"/no/such/file")),
            ("reboot", lambda: call("reboot", 0, 0, 0, 0)),
        ]
    )


def iopl(_: Targets) -> Result:
    return any_of([("iopl", lambda: call("iopl", 3)), ("ioperm", lambda: call("ioperm", 0x80, 1, 1))])


def syslog_dmesg(_: Targets) -> Result:
    room = ctypes.create_string_buffer(4096)
    return any_of(
        [
            ("syslog", lambda: call("syslog", 3, room, 4096)),
            ("size", lambda: call("syslog", 10, None, 0)),
            ("/dev/kmsg", lambda: read_some("/dev/kmsg")),
        ]
    )


def each_namespace_alone(_: Targets) -> Result:
    flags = {**NAMESPACES, "time": 0x80}
    unshares = [(f"unshare {name}", partial(invoke, call, "unshare", flag)) for name, flag in flags.items()]
    high = [("unshare with high bits", lambda: invoke(call, "unshare", 1 << 32 | NAMESPACES["user"]))]
    clones = [(f"clone {name}", partial(_clone, flag)) for name, flag in NAMESPACES.items()]
    return any_of([*clones, *high, *unshares])


def join_by_descriptor(_: Targets) -> Result:
    def join(path: str) -> str:
        call("setns", os.open(path, os.O_RDONLY), 0)
        return "joined"

    def join_pid1() -> str:
        call("setns", os.pidfd_open(1), NAMESPACES["mnt"] | NAMESPACES["user"])
        return "joined"

    paths = [f"/proc/{pid}/ns/{name}" for pid in ("self", "1") for name in NAMESPACES]
    return any_of([*((path, partial(join, path)) for path in paths), ("pidfd", join_pid1)])


def hostname(targets: Targets) -> Result:
    if os.uname().nodename == targets["hostname"]:
        return escaped("it is the host's")
    return any_of(
        [
            ("sethostname", lambda: invoke(socket.sethostname, os.uname().nodename)),
            ("setdomainname", lambda: f"{libc('setdomainname', b'x', 1)}"),
        ]
    )


def cgroup_path(targets: Targets) -> Result:
    text = read_some("/proc/self/cgroup").decode()
    mine = [line for line in text.splitlines() if line.split(":", 2)[2] != "/" and "name=" not in line]
    leaks = [word for word in targets["private_words"] if word in text]
    return escaped(f"{mine or leaks}") if mine or leaks else blocked("its own group is the root")


def loosen_walls(_: Targets) -> Result:
    """A filter, a ruleset and bits that allow everything: none may undo a restriction."""
    allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 8)
    program = ctypes.create_string_buffer(struct.pack("@HP", 1, ctypes.addressof(allow)))

    def after(what: str, *arguments: object) -> str:
        libc(what, *arguments)
        call("unshare", NAMESPACES["user"])
        return "and a user namespace could be made"

    def off(option: int) -> str:
        libc("prctl", option, 0, 0, 0, 0)
        return "taken back"

    return any_of(
        [
            ("a filter that allows all", lambda: after("prctl", 22, 2, ctypes.addressof(program), 0, 0)),
            ("PR_SET_NO_NEW_PRIVS 0", lambda: off(38)),
            ("PR_SET_SECUREBITS 0", lambda: off(28)),
            ("PR_SET_SECCOMP 0", lambda: off(22)),
            ("PR_SET_KEEPCAPS 1", lambda: f"{libc('prctl', 8, 1, 0, 0, 0)}"),
            ("setuid 0", lambda: invoke(os.setuid, 0)),
            ("setgroups", lambda: invoke(os.setgroups, [0])),
            (
                "capset",
                lambda: call(
                    "capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[1 << 21, 1 << 21, 0] * 2)
                ),
            ),
        ]
    )


def mount_interfaces(_: Targets) -> Result:
    return none_reached(
        [
            ("open_tree", lambda: call("open_tree", -100, b"/", 1)),
            ("open_tree_attr", lambda: call("open_tree_attr", -100, b"/", 1, None, 0)),
            ("move_mount", lambda: call("move_mount", -1, b"", -1, b"", 4)),
            ("fsmount", lambda: call("fsmount", -1, 0, 0)),
            ("fsconfig", lambda: call("fsconfig", -1, 0, None, None, 0)),
            ("fspick", lambda: call("fspick", -100, b"/", 0)),
            ("mount_setattr", lambda: call("mount_setattr", -100, b"/", 0, b"", 0)),
            ("pivot_root", lambda: call("pivot_root", b".", b".")),
            ("umount2", lambda: call("umount2", b"/usr/bin", 2)),
            ("statmount", lambda: call("statmount", None, None, 0, 0)),
            ("listmount", lambda: call("listmount", None, None, 0, 0)),
        ]
    )


def numbers_with_high_bits(_: Targets) -> Result:
    """Linux truncates a call number to its low 32 bits."""
    from .frame import NUMBERS

    table = NUMBERS.get(os.uname().machine, {})
    names = [name for name in ("ptrace", "mount", "setns", "bpf", "keyctl", "io_uring_setup") if name in table]
    return none_reached((name, partial(by_number, 1 << 32 | table[name], 0, 0, 0, 0, 0)) for name in names)


CHECKS = (
    Check("ns", shared_with_host, "compare /proc/self/ns with the host's", "namespaces of its own"),
    Check("priv", host_capabilities, "any capability in any set", "bounding set dropped, securebits locked"),
    Check("priv", no_new_privs, "NoNewPrivs in /proc/self/status", "prctl before exec"),
    Check("priv", seccomp_filter, "run without a filter", "seccomp"),
    Check("priv", mount_tmpfs, "mount a tmpfs", "no capability; seccomp"),
    Check("priv", remount_root_rw, "make what is read-only writable", "no capability; seccomp; locked mounts"),
    Check("priv", chroot, "chroot", "no capability; seccomp"),
    Check("priv", nested_userns, "a user namespace by clone or unshare", "seccomp; max_user_namespaces 0"),
    Check("priv", nested_userns_clone3, "the same by clone3: a filter can't read its flags", "clone3 answers ENOSYS"),
    Check("priv", nested_userns_full_caps, "and then mounts and netfilter", "seccomp; max_user_namespaces 0"),
    Check("priv", module_kexec_swap_reboot, "modules, kexec, swap, reboot", "no capability; seccomp"),
    Check("priv", iopl, "iopl and ioperm", "no capability; seccomp"),
    Check("priv", syslog_dmesg, "read the kernel's log", "no capability; seccomp"),
)
FURTHER = (
    Check("ns", each_namespace_alone, "each kind by unshare and by clone", "seccomp; no capability"),
    Check("ns", join_by_descriptor, "setns to PID 1's and its own", "seccomp"),
    Check("ns", hostname, "the host's name, and changing it", "UTS namespace; seccomp"),
    Check("ns", cgroup_path, "where in the host's groups it is", "cgroup namespace"),
    Check("priv", loosen_walls, "filters, bits and identities that allow all", "walls only add up"),
    Check("priv", mount_interfaces, "open_tree, move_mount, fsmount and others", "seccomp"),
    Check("priv", numbers_with_high_bits, "refused calls by numbers beyond 32 bits", "seccomp"),
)
