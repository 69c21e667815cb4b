"""A real Linux kernel with control groups of version 2: ``python -m tests.tools.cgroup2_vm -- COMMAND`` boots one.

The kernel is user-mode Linux (Debian: ``apt-get install user-mode-linux``; or what ``AGENTOS_GUEST_KERNEL`` names), an
ordinary program that needs neither root nor KVM. On a CPU with AMX, whose registers are more than it restores,
``whole_registers.c`` does that for it, which needs a C compiler. The guest sees the host's whole file tree, below a
file system in memory that takes all writes and is forgotten at the end. The command sits in a control group of its own,
delegated to it with the controllers cpu, memory and pids, as after ``systemd-run --scope -p Delegate=yes``; its path is
in ``$CGROUP2_SCOPE``.
It runs as root or, with ``--user``, as an ordinary user to whom that group belongs.

:class:`Guest` boots once for many commands, which find nothing of each other; ``cgroup2_init.py`` is the guest's side.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.tools import cgroup2_init

KERNEL = os.environ.get("AGENTOS_GUEST_KERNEL", "linux.uml")
# linux.uml keeps a descriptor for each file of the host that its Linux has in its cache.
MANY_FILES = ("sh", "-c", 'ulimit -Sn "$(ulimit -Hn)" && exec "$@"', "sh")
CPUINFO = Path("/proc/cpuinfo")
WHOLE_REGISTERS = Path(__file__).with_name("whole_registers.c")
MEMORY = "1024M"
DISK = 1 << 30  # bytes, of which those that are written take space
USER = cgroup2_init.USER
GUARD = 'read -r _; rm -rf "$0"; kill -KILL 0'  # the end of its input is that of the process which boots guests


@dataclass(frozen=True)
class Job:
    """What to run in the guest. ``hide`` are empty directories there; without ``delegate`` the group is root's.

    With ``disk`` its /tmp and /var/tmp are an empty ext4, without what isn't beside the program, its modules or
    ``cwd``. With ``sub_ids`` the user has 65,536 subordinate ids.
    """

    argv: list[str]
    user: bool = False
    delegate: bool = True
    env: dict[str, str] = field(default_factory=dict)
    hide: list[str] = field(default_factory=list)
    disk: bool = False
    sub_ids: bool = False
    cwd: str = field(default_factory=os.getcwd)


@dataclass(frozen=True)
class Ended:
    """How it went: the exit status (128 + n after a signal) and what the command wrote."""

    code: int
    out: str
    err: str


class NoGuest(Exception):
    """The guest did not start, or did not end; the text has its last words."""


def has_amx(cpuinfo: str) -> bool:
    """Whether the CPU that ``/proc/cpuinfo`` describes has AMX."""
    flags = (line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags"))
    return any("amx_tile" in line for line in flags)


def lacking() -> str | None:
    """Why there can be no guest on this host; ``None`` if there can."""
    if shutil.which(KERNEL) is None:
        return f"no {KERNEL} on the PATH (Debian: apt-get install user-mode-linux)"
    if find_overlay() is None:
        return f"no lib/uml/modules/*/overlay.ko beside the bin of {KERNEL}"
    if has_amx(CPUINFO.read_text()) and shutil.which("cc") is None:
        return f"no C compiler, which {KERNEL} needs on a CPU with AMX (Debian: apt-get install gcc libc6-dev)"
    return None


def find_overlay() -> Path | None:
    """The module of the file system that keeps writes apart, of the kernel that is booted."""
    if (kernel := shutil.which(KERNEL)) is None:
        return None
    return next(Path(kernel).resolve().parents[1].glob("lib/uml/modules/**/overlay.ko"), None)


class Guest:
    """A guest kernel that runs jobs, one after another: booted for the first, and anew after one that did not end.

    ``alone`` is for one job that changes what belongs to the kernel as a whole: the first process shares its root. The
    kernel is killed by :meth:`close`, and when this process ends, in whatever way.
    """

    def __init__(self, alone: bool = False) -> None:
        self._alone = alone
        self._kernel: _Kernel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, job: Job, timeout: float = 300) -> Ended:
        """Run the command to its end. :class:`NoGuest` when that takes longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        is_new = self._kernel is None
        if self._kernel is None:
            self._kernel = _boot(self._alone)
        try:
            if is_new:
                _hear(self._kernel.channel, deadline)
            return _run_there(self._kernel, job, deadline)
        except (OSError, NoGuest) as error:
            log = (self._kernel.work / "log").read_text(errors="replace")
            self.close()
            raise NoGuest(f"{error}: {log[-2000:]}") from error
        except BaseException:
            self.close()  # it may still be at that job
            raise

    def close(self) -> None:
        """Kill the kernel, if there is one."""
        if self._kernel is not None:
            kernel, self._kernel = self._kernel, None
            kernel.running.close()


@dataclass(frozen=True)
class _Kernel:
    running: contextlib.ExitStack
    channel: socket.socket
    work: Path


def _boot(alone: bool) -> _Kernel:
    """Start a kernel, in a process group that is killed as soon as our end of its guard's pipe is closed."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aos-vm-", dir="/tmp")))
        (work / "mnt").mkdir()
        (work / cgroup2_init.BOOT).write_text(json.dumps({"alone": alone, "overlay": str(find_overlay())}))
        with (work / "disk").open("wb") as disk:
            disk.truncate(DISK)
        init = work / "init"
        init.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n" + Path(cgroup2_init.__file__).read_text())
        init.chmod(0o755)
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        read, write = os.pipe()
        stack.callback(os.close, write)
        with theirs, open(read, "rb") as leash, (work / "log").open("wb") as log:
            kernel = subprocess.Popen(
                [*MANY_FILES, *_command(work, theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                process_group=0,  # as the leader linux.uml can't leave it
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(work), **_preload(work)},
            )
            stack.callback(kernel.wait)
            stack.callback(os.killpg, kernel.pid, signal.SIGKILL)
            guard = subprocess.Popen(["sh", "-c", GUARD, str(work)], stdin=leash, process_group=kernel.pid)
        running = contextlib.ExitStack()
        running.callback(guard.wait)
        running.push(stack.pop_all())
        return _Kernel(running, ours, work)


def _hear(channel: socket.socket, deadline: float) -> tuple[int, bytes]:
    """The next frame."""

    def receive(length: int) -> bytes:
        channel.settimeout(max(0.01, deadline - time.monotonic()))
        return channel.recv(length)

    if (frame := cgroup2_init.read_frame(receive)) is None:
        raise NoGuest("the guest ended before its command")
    return frame


def _run_there(kernel: _Kernel, job: Job, deadline: float) -> Ended:
    """Have a job run, whose file has a name that the guest has not looked up before; gather what comes of it."""
    file, name = tempfile.mkstemp(prefix="job-", dir=kernel.work)
    with open(file, "w") as place:
        json.dump(vars(job), place)
    kernel.channel.sendall(cgroup2_init.pack(cgroup2_init.WORD, json.dumps(name).encode()))
    written = {cgroup2_init.OUT: bytearray(), cgroup2_init.ERR: bytearray()}
    while (frame := _hear(kernel.channel, deadline))[0] != cgroup2_init.WORD:
        kind, body = frame
        written[kind] += body
    word = json.loads(frame[1])
    if "trouble" in word:
        raise NoGuest(word["trouble"])
    code: int = word["code"]
    return Ended(code if code >= 0 else 128 - code, *(text.decode("utf-8", "replace") for text in written.values()))


def run(job: Job, timeout: float = 300) -> Ended:
    """Boot, run the command, power off: for a job that changes what belongs to the kernel as a whole."""
    with Guest(alone=True) as guest:
        return guest.run(job, timeout)


def _preload(work: Path) -> dict[str, str]:
    """What lets the kernel run programs on this CPU; the guest's programs don't get it."""
    if not has_amx(CPUINFO.read_text()):
        return {}
    library = work / "whole_registers.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, WHOLE_REGISTERS], check=True)
    return {"LD_PRELOAD": str(library)}


def _command(work: Path, channel: int) -> list[str]:
    """The kernel's command line; on one CPU, since its two host processes take turns at every system call."""
    cpus = sorted(os.sched_getaffinity(0))
    return [
        *("taskset", "-c", str(cpus[os.getpid() % len(cpus)])),  # not the same for all workers
        *(KERNEL, f"mem={MEMORY}", "umid=guest", f"uml_dir={work}"),
        *("root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={work}/init", f"{cgroup2_init.WORK}={work}"),
        f"ubd0={work}/disk",
        *("con=null", "ssl=null", "con0=null,fd:2", f"con1=fd:{channel}"),
        *("panic=-1", "noreboot", "quiet", "cgroup_no_v1=all"),
        # Self-tests and benchmarks of drivers that nobody uses here take a second.
        *("cryptomgr.notests=1", "initcall_blacklist=raid6_select_algo,calibrate_xor_blocks,init_btrfs_fs"),
    ]


def main() -> int:
    """The command line of the host's side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", action="store_true", help=f"as uid {USER}, to whom the group belongs")
    parser.add_argument("--no-delegate", action="store_true", help="the group belongs to root")
    parser.add_argument("--hide", action="append", default=[], metavar="PATH", help="an empty directory there")
    parser.add_argument("--timeout", type=float, default=300, help="seconds")
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
    sys.exit(main())
