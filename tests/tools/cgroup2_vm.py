"""A real Linux kernel with control groups of version 2, booted for one command: ``python cgroup2_vm.py -- COMMAND``.

The kernel is user-mode Linux (Debian: ``apt-get install user-mode-linux``), an ordinary program that needs neither
root nor KVM. Its guest sees the host's whole file tree, below a file system in memory that takes all writes and is
forgotten at the end. The command sits in a control group of its own, delegated to it with the controllers cpu, memory
and pids, as after ``systemd-run --scope -p Delegate=yes``; its path is in ``$CGROUP2_SCOPE``. It runs as root or, with
``--user``, as an ordinary user to whom that group belongs.

One file for both sides: on the host it starts the kernel, in the guest it is the first process.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import traceback
import tty
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNEL = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
JOB = "CGROUP2_VM_JOB"  # the variable that names our directory on the host to the guest's first process
CGROUPS = "/sys/fs/cgroup"
USER = 1000  # uid and gid
POWER_OFF = 0x4321FEDC
MOVE, NOSUID, NODEV, NOEXEC = 8192, 2, 4, 8
FINIT_MODULE = 313  # x86_64

GUEST_FILE_SYSTEMS = (
    ("proc", "/proc", NOSUID | NODEV | NOEXEC, ""),
    ("sysfs", "/sys", NOSUID | NODEV | NOEXEC, ""),
    ("cgroup2", CGROUPS, NOSUID | NODEV | NOEXEC, "nsdelegate,memory_recursiveprot"),
    ("devtmpfs", "/dev", NOSUID, ""),
    ("devpts", "/dev/pts", NOSUID | NOEXEC, "ptmxmode=0666,mode=620,gid=5"),
    ("tmpfs", "/dev/shm", NOSUID | NODEV, "mode=1777"),
    ("tmpfs", "/run", NOSUID | NODEV, "mode=755"),
)


@dataclass(frozen=True)
class Job:
    """What to run in the guest. ``hide`` are empty directories there; without ``delegate`` the group is root's."""

    argv: list[str]
    user: bool = False
    delegate: bool = True
    env: dict[str, str] = field(default_factory=dict)
    hide: list[str] = field(default_factory=list)
    cwd: str = field(default_factory=os.getcwd)


@dataclass(frozen=True)
class Ended:
    """How it went: the exit status (128 + n after a signal) and what the command wrote."""

    code: int
    out: str
    err: str


class NoGuest(Exception):
    """The guest did not start, or did not end; the text has its last words."""


def lacking() -> str | None:
    """Why there can be no guest on this host; ``None`` if there can."""
    if shutil.which(KERNEL) is None:
        return f"no {KERNEL} on the PATH (Debian: apt-get install user-mode-linux)"
    if not any(MODULES.rglob("overlay.ko")):
        return f"no overlay.ko below {MODULES}"
    return None


def run(job: Job, timeout: float = 120) -> Ended:
    """Boot, run the command, power off. :class:`NoGuest` when that takes longer than ``timeout`` seconds."""
    with tempfile.TemporaryDirectory(prefix="aos-vm-", dir="/tmp") as directory, contextlib.ExitStack() as stack:
        work = Path(directory)
        (work / "mnt").mkdir()
        (work / "job.json").write_text(json.dumps(vars(job)))
        init = work / "init"
        init.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n" + Path(__file__).read_text())
        init.chmod(0o755)
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(2)]
        log = stack.enter_context((work / "log").open("wb"))
        kernel = subprocess.Popen(
            ["timeout", "--signal=KILL", f"{timeout + 20:g}", *_command(work, [end.fileno() for _, end in pairs])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno() for _, theirs in pairs],
            start_new_session=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(work)},
        )
        try:
            for _, theirs in pairs:
                theirs.close()
            out, err = _outputs([ours for ours, _ in pairs], time.monotonic() + timeout)
            kernel.wait(timeout=10)
            status = json.loads((work / "status").read_text())
        except (TimeoutError, subprocess.TimeoutExpired, FileNotFoundError) as error:
            raise NoGuest(f"{error}: {(work / 'log').read_text(errors='replace')[-2000:]}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(kernel.pid, signal.SIGKILL)
            kernel.wait()
        return Ended(status if status >= 0 else 128 - status, out, err)


def _command(work: Path, consoles: list[int]) -> list[str]:
    """The kernel's command line; on one CPU, since its two host processes take turns at every system call."""
    return [
        *("taskset", "-c", str(min(os.sched_getaffinity(0)))),
        *(KERNEL, "mem=1024M", "umid=guest", f"uml_dir={work}"),
        *("root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={work}/init", f"{JOB}={work}"),
        *("con=null", "ssl=null", "con0=null,fd:2"),
        *(f"con{number}=null,fd:{fd}" for number, fd in enumerate(consoles, start=1)),
        *("panic=-1", "noreboot", "quiet", "cgroup_no_v1=all"),
        # Self-tests and benchmarks of drivers that nobody uses here take a second.
        *("cryptomgr.notests=1", "initcall_blacklist=raid6_select_algo,calibrate_xor_blocks,init_btrfs_fs"),
    ]


def _outputs(ends: list[socket.socket], deadline: float) -> tuple[str, str]:
    got = {end: bytearray() for end in ends}
    open_ends = list(ends)
    while open_ends:
        ready = select.select(open_ends, [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            raise TimeoutError("the guest did not end in time")
        for end in ready:
            with contextlib.suppress(ConnectionResetError):
                if data := end.recv(65536):
                    got[end] += data
                    continue
            open_ends.remove(end)
    out, err = (got[end].decode("utf-8", "replace") for end in ends)
    return out, err


# From here on: the guest's first process.


def _mount(libc: Any, source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} at {target}: {os.strerror(ctypes.get_errno())}")


def _put(path: str, text: str) -> None:
    Path(path).write_text(text)


def _make_root(libc: Any, work: str) -> None:
    """The host's tree with all writes in memory as our root, and a kernel's own file systems in it."""
    module = os.open(next(MODULES.rglob("overlay.ko")), os.O_RDONLY)
    libc.syscall(FINIT_MODULE, module, b"", 0)
    top = f"{work}/mnt"
    _mount(libc, "tmpfs", top, "tmpfs")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{top}/{name}")
    root = f"{top}/root"
    _mount(libc, "overlay", root, "overlay", 0, f"lowerdir=/,upperdir={top}/upper,workdir={top}/work")
    for kind, where, flags, options in GUEST_FILE_SYSTEMS:
        os.makedirs(root + where, exist_ok=True)
        _mount(libc, kind, root + where, kind, flags, options)
    _mount(libc, "none", root + work, "hostfs", 0, work)  # for the exit status
    os.chdir(root)
    _mount(libc, ".", "/", None, MOVE)
    os.chroot(".")
    os.chdir("/")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")


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


def _run_command(libc: Any, job: dict[str, Any], work: str) -> None:
    """Start it on pipes, since it shall not see a terminal; copy what it writes until it ends; note how it ended."""
    pipes: dict[int, int] = {}
    outputs = []
    for number in (1, 2):
        console = os.open(f"/dev/tty{number}", os.O_RDWR | os.O_NOCTTY)
        tty.setraw(console)
        read, write = os.pipe()
        pipes[read] = console
        outputs.append(write)
    scope = _make_scope(job)
    join = os.open(f"{scope}/cgroup.procs", os.O_WRONLY)
    for path in job["hide"]:
        _mount(libc, "tmpfs", path, "tmpfs", 0, "size=4k,mode=755")
    command = _start(job, scope, join, outputs)
    for write in outputs:
        os.close(write)
    consoles, ended = tuple(pipes.values()), os.pidfd_open(command)
    while (ready := select.select([*pipes, ended], [], [])[0]) != [ended]:  # the rest of its output comes first
        for read in pipes.keys() & ready:
            data = os.read(read, 65536)
            if not data:
                del pipes[read]
            while data:
                data = data[os.write(pipes[read], data) :]
    for console in consoles:
        termios.tcdrain(console)
    _put(f"{work}/status", str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])))


def _guest(work: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        job = json.loads(Path(work, "job.json").read_text())
        _make_root(libc, work)
        runner = os.fork()
        if runner == 0:
            _run_command(libc, job, work)
            os._exit(0)
        while os.wait()[0] != runner:  # orphans become ours
            pass
        os.sync()
    except BaseException:
        traceback.print_exc()  # to the kernel's log
        raise
    finally:
        if os.getpid() == 1:
            libc.reboot(POWER_OFF)
        os._exit(1)


def main() -> int:
    """The command line of the host's side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", action="store_true", help=f"as uid {USER}, to whom the group belongs")
    parser.add_argument("--no-delegate", action="store_true", help="the group belongs to root")
    parser.add_argument("--hide", action="append", default=[], metavar="PATH", help="an empty directory there")
    parser.add_argument("--timeout", type=float, default=120, help="seconds")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    if why := lacking():
        sys.exit(why)
    job = Job(args.command, user=args.user, delegate=not args.no_delegate, hide=args.hide)
    try:
        ended = run(job, args.timeout)
    except NoGuest as error:
        print(error, file=sys.stderr)
        return 125
    sys.stdout.write(ended.out)
    sys.stderr.write(ended.err)
    return ended.code


if __name__ == "__main__":
    if os.getpid() == 1 and JOB in os.environ:
        _guest(os.environ[JOB])
    sys.exit(main())
