"""Attacks on files: reading foreign files, writing where host programs read, and reaching the host's file tree."""

import ctypes
import os
import stat
import struct
from collections.abc import Callable, Iterator
from functools import partial

from .frame import (
    Attempt,
    Check,
    Result,
    Targets,
    any_of,
    blocked,
    call,
    escaped,
    invoke,
    list_pids,
    not_applicable,
    open_path,
    read_canary,
    read_some,
    tried,
)

SYSTEM = ("/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/opt", "/var/lib", "/boot", "/bin", "/lib", "/sbin", "/root")
PROTECTED = (
    *(".git/hooks/pre-commit", ".git/config", ".envrc", ".vscode/tasks.json", ".idea/workspace.xml"),
    *("conftest.py", ".bashrc", ".profile", ".gitmodules", ".mcp.json", ".claude/settings.json", "agentos.toml"),
)
DEVICES = (
    *("kvm", "fuse", "net/tun", "kmsg", "loop-control", "loop0", "vsock", "vhost-vsock", "vhost-net", "userfaultfd"),
    *("vda", "sda", "nvme0n1", "mem", "kmem", "port", "mapper/control", "btrfs-control", "uinput", "snapshot", "cuse"),
)
SETTINGS = ("kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory", "kernel/randomize_va_space")
SENSITIVE = (
    *("/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/iomem", "/proc/vmallocinfo", "/proc/slabinfo"),
    *("/sys/firmware/dmi/tables/DMI", "/sys/kernel/tracing/trace", "/sys/kernel/debug/sched/debug"),
    *("/sys/class/dmi/id/product_serial", "/sys/kernel/security/landlock"),
)


_AT_FDCWD = -100


def read_shadow(_: Targets) -> Result:
    def read() -> str | None:
        return "read" if b":" in read_some("/etc/shadow") else None

    return any_of([("/etc/shadow", read), ("/etc/shadow-", lambda: read_some("/etc/shadow-") or None)])


def read_ssh_key(targets: Targets) -> Result:
    own = os.path.expanduser("~/.ssh/id_ed25519")
    return any_of((path, partial(read_canary, path)) for path in (targets["ssh_key"], targets["secret"], own))


def write_outside_workspace(targets: Targets) -> Result:
    name = f"planted-{targets['token']}"
    found = any_of(
        (place, partial(_create, f"{place}/{name}"))
        for place in (targets["outside"], os.path.dirname(targets["outside"]), "/workspace/..", "..")
    )
    return found if found.outcome == "blocked" else tried(found.detail)


def _create(path: str) -> str:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    return path


def write_system_dirs(targets: Targets) -> Result:
    return any_of((place, partial(_create, f"{place}/planted-{targets['token']}")) for place in SYSTEM)


def plant_code_for_the_kernel(targets: Targets) -> Result:
    def plant(place: str) -> str:
        os.makedirs(place, exist_ok=True)
        return _create(f"{place}/planted-{targets['token']}.pth")

    places = (*targets["kernel_paths"], "/etc", "/etc/ld.so.conf.d")
    found = any_of((place, partial(plant, place)) for place in places)
    return found if found.outcome == "blocked" else tried(found.detail)


def persistence_in_workspace(_: Targets) -> Result:
    """Whether the workspace is a directory of the host or vanishes with the agent can only be seen outside."""

    def write(name: str) -> str:
        os.makedirs(os.path.dirname(f"./{name}"), exist_ok=True)
        with open(name, "w") as file:
            file.write("planted")
        return name

    found = any_of((name, partial(write, name)) for name in PROTECTED)
    return found if found.outcome == "blocked" else tried(found.detail)


def proc_root_links(targets: Targets) -> Result:
    secret = targets["secret"]
    roots = [f"/proc/{pid}/root" for pid in (*list_pids(), "self", "thread-self", targets["victim"])]
    ways = [*roots, *(f"/proc/{pid}/cwd{'/..' * 9}" for pid in (*list_pids(), "self"))]
    # The agent's own /tmp has no such path, whichever link leads there.
    return any_of((way, partial(read_canary, way + secret)) for way in ways)


def open_by_handle_at(_: Targets) -> Result:
    """A guessed handle of the file system's root directory (inode 2), or one of a visible directory."""

    def reach(place: str) -> str:
        root = ctypes.create_string_buffer(struct.pack("=IiII", 8, 1, 2, 0), 128 + 8)
        mount = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.close(call("open_by_handle_at", mount, root, os.O_RDONLY))
        return place

    def name(place: str) -> int:
        handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 128 + 8)
        return call("name_to_handle_at", -100, place.encode(), handle, ctypes.byref(ctypes.c_int()), 0)

    places = [place for place in ("/", "/usr", "/workspace", "/tmp", "/agent") if os.path.isdir(place)]
    found = any_of((place, partial(reach, place)) for place in places)
    return found if found.outcome == "escaped" else any_of((place, partial(name, place)) for place in places)


def mknod_host_disk(targets: Targets) -> Result:
    def read(place: str) -> str:
        path = f"{place}/disk-{os.getpid()}"
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(*targets["disk"]))
        try:
            return f"read {len(read_some(path, 512))} bytes"
        finally:
            os.unlink(path)

    return any_of((place, partial(read, place)) for place in ("/tmp", "/workspace", "/dev/shm", "/dev"))


def dangerous_devices(_: Targets) -> Result:
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}

    def nodes() -> Iterator[str]:
        for directory, names, files in os.walk("/dev"):
            names[:] = [name for name in names if name not in ("pts", "shm", "mqueue")]
            for path in (f"{directory}/{name}" for name in files if name not in harmless):
                mode = os.lstat(path).st_mode
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    yield path

    paths = dict.fromkeys([*(f"/dev/{name}" for name in DEVICES), *list(nodes())[:200]])
    return any_of((path, partial(open_path, path, os.O_RDONLY)) for path in paths)


def inherited_fds(targets: Targets) -> Result:
    """Descriptors that were open before the attacker opened any."""
    there = {fd: _link(fd) for fd in targets["open"] if fd > 2}
    if there:
        return escaped(f"open: {there}")
    leads_out = [fd for fd in targets["open"] if os.path.isdir(f"/proc/self/fd/{fd}")]
    return escaped(f"directories: {leads_out}") if leads_out else blocked("only 0, 1 and 2 are open")


def _link(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError as error:
        return str(error)


def sysfs_cgroup_write(_: Targets) -> Result:
    def files() -> Iterator[Attempt]:
        top = "/sys/fs/cgroup"
        for directory in (
            top,
            *_directories(top),
            *(below for one in _directories(top) for below in _directories(one)),
        ):
            for name in ("cgroup.procs", "release_agent", "notify_on_release", "cgroup.subtree_control", "memory.max"):
                yield f"{directory}/{name}", partial(open_path, f"{directory}/{name}", os.O_WRONLY)

    return any_of(files())


def _directories(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)][:40]
    except OSError:
        return []


def proc_sys_write(_: Targets) -> Result:
    """Write the current value back: harmless if it succeeds."""

    def write(name: str) -> str:
        with open(f"/proc/sys/{name}", "rb+", buffering=0) as file:
            return f"wrote {file.write(file.read())} bytes"

    return any_of((name, partial(write, name)) for name in SETTINGS)


def proc_sensitive(_: Targets) -> Result:
    reads = [(path, lambda path=path: read_some(path, 64) or None) for path in SENSITIVE]
    return any_of([*reads, ("sysrq-trigger", lambda: open_path("/proc/sysrq-trigger", os.O_WRONLY))])


def setuid_file(_: Targets) -> Result:
    """In a directory of the host a set-uid file would give the user's identity to any process that runs it."""
    where = f"set-uid-{os.getpid()}"

    def by(way: str) -> Callable[[], str | None]:
        path = f"{where}.{way}"
        made = {
            "chmod": lambda: os.chmod(_create(path), 0o4755),
            "fchmod": lambda: os.fchmod(os.open(path, os.O_CREAT), 0o4755),
            "open": lambda: invoke(os.open, path, os.O_CREAT | os.O_WRONLY, 0o4755),
            "mknod": lambda: os.mknod(path, stat.S_IFREG | 0o4755),
            "fchmodat2": lambda: invoke(call, "fchmodat2", _AT_FDCWD, _create(path).encode(), 0o4755, 0),
            "high bits": lambda: invoke(call, "fchmodat2", _AT_FDCWD, _create(path).encode(), 1 << 32 | 0o4755, 0),
        }
        return lambda: path if (invoke(made[way]), os.stat(path).st_mode & stat.S_ISUID)[1] else None

    ways = ("chmod", "fchmod", "open", "mknod", "fchmodat2", "high bits")
    unnamed = ("O_TMPFILE", lambda: invoke(os.open, ".", os.O_TMPFILE | os.O_WRONLY, 0o4755))
    return any_of([*((way, by(way)) for way in ways), unnamed])


def file_capabilities(_: Targets) -> Result:
    path = f"capable-{os.getpid()}"

    def grant() -> str:
        # struct vfs_cap_data, revision 2, effective: CAP_SYS_ADMIN
        os.setxattr(_create(path), "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0))
        return "set"

    return any_of([("security.capability", grant)])


def write_through_own_memory(_: Targets) -> Result:
    """Whether writing via /proc/self/mem to a read-only mapping changes the page cache of the file."""
    import mmap

    path = next(path for path in ("/bin/true", "/usr/bin/true", "/bin/sh") if os.path.exists(path))
    before = read_some(path, 64)

    def write(kind: int) -> None:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 4096, flags=kind, prot=mmap.PROT_READ)
        holder = ctypes.py_object(mapped)
        buffer = (ctypes.c_char * 0).from_address(_address_of(path))
        with open("/proc/self/mem", "rb+", buffering=0) as memory:
            memory.seek(ctypes.addressof(buffer) + 8)
            memory.write(b"planted!")
        del holder
        mapped.close()

    any_of([("shared", lambda: write(mmap.MAP_SHARED)), ("private", lambda: write(mmap.MAP_PRIVATE))])
    return blocked("the file is as it was") if read_some(path, 64) == before else escaped(f"{path} was changed")


def _address_of(path: str) -> int:
    real = os.path.realpath(path)
    with open("/proc/self/maps") as maps:
        return next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(real))


def run_from_shared_memory(_: Targets) -> Result:
    """Run a program from /dev/shm, which is for data only."""

    def start() -> str:
        path = f"/dev/shm/program-{os.getpid()}"
        with open("/bin/true", "rb") as program, open(path, "wb") as copy:
            copy.write(program.read())
        os.chmod(path, 0o755)
        os.waitpid(os.posix_spawn(path, ["program"], {}), 0)
        return "ran"

    if not os.path.isdir("/dev/shm"):
        return not_applicable("there is no /dev/shm")
    return any_of([("/dev/shm", start)])


def rewrite_own_identity(_: Targets) -> Result:
    def write(name: str, text: str) -> str:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
        return "written"

    maps = [("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "allow")]
    others = [("timens_offsets", "monotonic 9 0"), ("loginuid", "0"), ("oom_adj", "-17")]
    return any_of((name, partial(write, name, text)) for name, text in (*maps, *others))


CHECKS = (
    Check("file", read_shadow, "read /etc/shadow", "a root and an /etc of its own"),
    Check("file", read_ssh_key, "read the host user's ~/.ssh", "a root of its own"),
    Check("file", write_outside_workspace, "create a file beside the workspace", "a root of its own"),
    Check("file", write_system_dirs, "write /usr, /etc, /opt, /var/lib", "read-only binds; Landlock"),
    Check("file", plant_code_for_the_kernel, "a .pth where the kernel imports from", "read-only binds"),
    Check(
        "file",
        persistence_in_workspace,
        ".git/hooks, .envrc, agentos.toml for host tools",
        "protected names, or a workspace that goes",
    ),
    Check("file", proc_root_links, "/proc/PID/root and cwd of any process", "PID namespace; subset=pid"),
    Check("file", open_by_handle_at, "a handle of the host's file system", "no capability; seccomp"),
    Check("file", mknod_host_disk, "a node for the host's disk, read raw", "no capability; nodev"),
    Check("file", dangerous_devices, "/dev/kvm, fuse, net/tun, kmsg, disks", "a /dev of five nodes"),
    Check("file", inherited_fds, "descriptors that were left open", "close_range before exec"),
    Check("file", sysfs_cgroup_write, "cgroup.procs, release_agent for writing", "no /sys"),
    Check(
        "file",
        proc_sys_write,
        "core_pattern, modprobe, overcommit_memory",
        "an outer uid that isn't root's; subset=pid",
    ),
    Check("file", proc_sensitive, "kcore, kmsg, sysrq-trigger, DMI, tracing", "subset=pid; no /sys"),
)
FURTHER = (
    Check("file", setuid_file, "chmod u+s in seven ways", "seccomp; nosuid"),
    Check("file", file_capabilities, "a file with capabilities", "no capability"),
    Check("file", write_through_own_memory, "a read-only file through /proc/self/mem", "read-only binds"),
    Check("file", run_from_shared_memory, "a program in /dev/shm", "noexec"),
    Check(
        "file",
        rewrite_own_identity,
        "uid_map, setgroups, loginuid, timens_offsets",
        "maps are written once; no capability",
    ),
)
