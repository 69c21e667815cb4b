"""The first process of a guest kernel: it runs jobs one after another, each with its own file tree and control group.

The host's side, ``cgroup2_vm.py``, starts it as a script of its own: it imports nothing but the standard library. Both
sides send frames over one channel:

OFFSET  SIZE  FIELD
0       1     kind: 0 a word in JSON, to the guest a job's file, to the host "ready" and then how each job ended;
              1 what the command wrote to stdout, 2 to stderr
1       4     length of the body in bytes, big-endian
5       ...   the body

A job has new namespaces for mounts, IPC, host name and network, and above the host's tree a file system in memory for
all writes; or below /tmp an empty disk. When its command ends, all processes in the guest are killed, all control
groups removed, and the namespaces go with the last process. What belongs to the kernel as a whole stays: other sysctls
and device nodes in ``/dev``. A job that changes these needs a kernel of its own, booted with ``alone``: its root is
also that of the programs that the kernel itself starts.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import tempfile
import traceback
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORK = "CGROUP2_VM_WORK"  # the variable that names the host's side's directory
BOOT = "boot.json"  # in that directory
DISK = "/dev/ubda"  # a file in that directory
HEADER = struct.Struct(">BI")
WORD, OUT, ERR = 0, 1, 2  # kinds of frame
CGROUPS = "/sys/fs/cgroup"
USER = 1000  # uid and gid
POWER_OFF = 0x4321FEDC
BIND, MOVE, NOSUID, NODEV, NOEXEC = 4096, 8192, 2, 4, 8
NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000  # CLONE_NEWNS, NEWUTS, NEWIPC, NEWNET
FINIT_MODULE = 313  # x86_64

CGROUP_MOUNT = ("cgroup2", CGROUPS, NOSUID | NODEV | NOEXEC, "nsdelegate,memory_recursiveprot")
GUEST_FILE_SYSTEMS = (
    ("proc", "/proc", NOSUID | NODEV | NOEXEC, ""),
    ("sysfs", "/sys", NOSUID | NODEV | NOEXEC, ""),
    CGROUP_MOUNT,
    ("devtmpfs", "/dev", NOSUID, ""),
    ("devpts", "/dev/pts", NOSUID | NOEXEC, "ptmxmode=0666,mode=620,gid=5"),
    ("tmpfs", "/dev/shm", NOSUID | NODEV, "mode=1777"),
    ("tmpfs", "/run", NOSUID | NODEV, "mode=755"),
    ("tmpfs", "/var/lib/agentos-host-ids", NOSUID | NODEV, "mode=700"),  # the host's may be root's, and we not
)


def pack(kind: int, body: bytes) -> bytes:
    """One frame."""
    return HEADER.pack(kind, len(body)) + body


def read_frame(read: Callable[[int], bytes]) -> tuple[int, bytes] | None:
    """The next frame, from reads of at most so many bytes; ``None`` when the other side is gone."""
    header = _read_exactly(read, HEADER.size)
    if header is None:
        return None
    kind, length = HEADER.unpack(header)
    body = _read_exactly(read, length)
    return None if body is None else (kind, body)


def _read_exactly(read: Callable[[int], bytes], length: int) -> bytes | None:
    got = bytearray()
    while len(got) < length:
        data = read(length - len(got))
        if not data:
            return None
        got += data
    return bytes(got)


def _mount(libc: Any, source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} at {target}: {os.strerror(ctypes.get_errno())}")


def _put(path: str, text: str) -> None:
    Path(path).write_text(text)


def _send(channel: int, kind: int, body: bytes) -> None:
    data = pack(kind, body)
    while data:
        data = data[os.write(channel, data) :]


def _load_overlay(libc: Any, path: str) -> None:
    module = os.open(path, os.O_RDONLY)
    libc.syscall(FINIT_MODULE, module, b"", 0)
    os.close(module)


def _make_root(libc: Any, top: str) -> None:
    """The host's tree with all writes in memory as our root, and a kernel's own file systems in it."""
    _mount(libc, "tmpfs", top, "tmpfs")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{top}/{name}")
    root = f"{top}/root"
    _mount(libc, "overlay", root, "overlay", 0, f"lowerdir=/,upperdir={top}/upper,workdir={top}/work")
    for kind, where, flags, options in GUEST_FILE_SYSTEMS:
        os.makedirs(root + where, exist_ok=True)
        _mount(libc, kind, root + where, kind, flags, options)
    os.chdir(root)
    _mount(libc, ".", "/", None, MOVE)
    os.chroot(".")
    os.chdir("/")
    _put("/proc/sys/kernel/modprobe", "\n")  # nothing to load on demand: 200 kinds of socket cost 40 s to look for
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")


def _mount_disk(libc: Any, job: dict[str, Any]) -> None:
    """An empty ext4 at /tmp and /var/tmp, as no overlay lies on the one above the host's tree.

    What the command needs of /tmp stays.
    """
    subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", "-E", "nodiscard", DISK], check=True, stdin=subprocess.DEVNULL)
    paths = [job["cwd"], job["argv"][0], *job["env"].get("PYTHONPATH", "").split(os.pathsep)]
    former = os.open("/tmp", os.O_PATH)
    _mount(libc, DISK, "/tmp", "ext4", NOSUID | NODEV)
    os.chmod("/tmp", 0o1777)
    _mount(libc, "/tmp", "/var/tmp", None, BIND)
    for name in {path.split("/")[2] for path in paths if path.startswith("/tmp/")}:
        os.mkdir(f"/tmp/{name}")
        _mount(libc, f"/proc/self/fd/{former}/{name}", f"/tmp/{name}", None, BIND)
    os.close(former)


def _make_scope(job: dict[str, Any]) -> str:
    """A control group for the command, in one that isn't its own, as a session has it."""
    controllers = "+cpu +memory +pids"
    for above in (CGROUPS, f"{CGROUPS}/guest.slice"):
        os.makedirs(above, exist_ok=True)
        _put(f"{above}/cgroup.subtree_control", controllers)
    scope = f"{CGROUPS}/guest.slice/command.scope"
    os.mkdir(scope)
    if job["user"] and job["delegate"]:
        for name in ("", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"):
            os.chown(scope + name, USER, USER)
    return scope


def _start(job: dict[str, Any], scope: str, join: int, outputs: list[int]) -> int:
    """Fork and exec the command in its group, whose processes are ``join``; returns its pid."""
    home = "/root"
    if job["user"]:
        os.chmod("/root", 0o711)  # in the guest only: a Python below /root must be reachable
        home = tempfile.mkdtemp(prefix="home-", dir="/tmp")
        os.chown(home, USER, USER)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8", "CGROUP2_SCOPE": scope} | job["env"]
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.write(join, b"0")
        for number, fd in enumerate((os.open("/dev/null", os.O_RDONLY), *outputs)):
            os.dup2(fd, number)
        os.closerange(3, 256)
        if job["user"]:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        os.chdir(job["cwd"])
        os.execvpe(job["argv"][0], job["argv"], env)
    except OSError as error:
        os.write(2, f"{job['argv'][0]}: {error}\n".encode())
    os._exit(127)


def _run_command(libc: Any, job: dict[str, Any], channel: int) -> int:
    """Start it on pipes, since it shall not see a terminal; send what it writes until it ends; return how it ended."""
    kinds: dict[int, int] = {}
    outputs = []
    for kind in (OUT, ERR):
        read, write = os.pipe()
        kinds[read] = kind
        outputs.append(write)
    scope = _make_scope(job)
    join = os.open(f"{scope}/cgroup.procs", os.O_WRONLY)
    for path in job["hide"]:
        _mount(libc, "tmpfs", path, "tmpfs", 0, "size=4k,mode=755")
    if job["disk"]:
        _mount_disk(libc, job)
    if job["sub_ids"]:
        for name in ("/etc/subuid", "/etc/subgid"):
            _put(name, f"{USER}:100000:65536\n")
    command = _start(job, scope, join, outputs)
    for write in outputs:
        os.close(write)
    ended = os.pidfd_open(command)
    while (ready := select.select([*kinds, ended], [], [])[0]) != [ended]:  # the rest of its output comes first
        for read in kinds.keys() & ready:
            data = os.read(read, 65536)
            if data:
                _send(channel, kinds[read], data)
            else:
                del kinds[read]
    return os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])


def _run_job(libc: Any, job: dict[str, Any], channel: int, top: str | None) -> dict[str, Any]:
    """Run it in a child, in a root of its own below ``top`` or in ours; returns its ``code`` or the ``trouble``."""
    read, write = os.pipe()
    runner = os.fork()
    if runner == 0:
        try:
            if top is not None:
                if libc.unshare(NEW_NAMESPACES):
                    raise OSError(ctypes.get_errno(), "unshare")
                _make_root(libc, top)
            word: dict[str, Any] = {"code": _run_command(libc, job, channel)}
        except BaseException:
            word = {"trouble": traceback.format_exc()}
        os.write(write, json.dumps(word).encode())
        os._exit(0)
    os.close(write)
    while os.wait()[0] != runner:  # orphans become ours
        pass
    said = os.read(read, 65536)
    os.close(read)
    found: dict[str, Any] = json.loads(said) if said else {"trouble": "the job killed the process that ran it"}
    return found


def _clear(cgroups: str) -> None:
    """End all processes but ourselves, and remove all control groups."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    for above, names, _ in os.walk(cgroups, topdown=False):
        for name in names:
            os.rmdir(f"{above}/{name}")


def _open_channel(devices: str) -> int:
    console = os.open(f"{devices}/tty1", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(console)
    return console


def _run_jobs(work: str) -> None:
    """Run what comes over the channel, until the host's side is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    boot = json.loads(Path(work, BOOT).read_text())
    _load_overlay(libc, boot["overlay"])
    top = f"{work}/mnt"
    _mount(libc, "tmpfs", top, "tmpfs")
    for name in ("devices", "cgroups", "root"):
        os.mkdir(f"{top}/{name}")
    _mount(libc, "devtmpfs", f"{top}/devices", "devtmpfs", NOSUID)
    channel = _open_channel(f"{top}/devices")
    kind, _, flags, options = CGROUP_MOUNT
    _mount(libc, kind, f"{top}/cgroups", kind, flags, options)
    if boot["alone"]:
        _make_root(libc, f"{top}/root")
    _send(channel, WORD, b'"ready"')  # a console loses what is sent before it is raw
    while frame := read_frame(lambda length: os.read(channel, length)):
        job = json.loads(Path(json.loads(frame[1])).read_text())
        word = _run_job(libc, job, channel, None if boot["alone"] else f"{top}/root")
        if not boot["alone"]:
            _clear(f"{top}/cgroups")
        _send(channel, WORD, json.dumps(word).encode())


if __name__ == "__main__":
    try:
        _run_jobs(os.environ[WORK])
    except BaseException:
        traceback.print_exc()  # to the kernel's log
        raise
    finally:
        if os.getpid() == 1:
            ctypes.CDLL(None).reboot(POWER_OFF)
        os._exit(1)
