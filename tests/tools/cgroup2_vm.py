"""A real Linux kernel with control groups of version 2: ``python -m tests.tools.cgroup2_vm -- COMMAND`` boots one.

The kernel is user-mode Linux (Debian: ``apt-get install user-mode-linux``), an ordinary program that needs neither
root nor KVM. It can't run programs on a CPU with AMX, whose registers are more than it can restore ("ptrace set fp regs
failed, errno 14"): there QEMU boots Debian's cloud kernel, which needs root. ``CGROUP2_VM_ENGINE=qemu`` (or ``uml``)
chooses by hand. The guest sees the host's whole file tree, below a file system in memory that takes all writes and is
forgotten at the end. The command sits in a control group of its own, delegated to it with the controllers cpu, memory
and pids, as after ``systemd-run --scope -p Delegate=yes``; its path is in ``$CGROUP2_SCOPE``. It runs as root or, with
``--user``, as an ordinary user to whom that group belongs.

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from tests.tools import cgroup2_init

KERNEL = "linux.uml"
# linux.uml keeps a descriptor for each file of the host that its Linux has in its cache.
MANY_FILES = ("sh", "-c", 'ulimit -Sn "$(ulimit -Hn)" && exec "$@"', "sh")
MODULES = cgroup2_init.UML_MODULES
ENGINE = "CGROUP2_VM_ENGINE"
CPUINFO = Path("/proc/cpuinfo")
QEMU = "qemu-system-x86_64"
VIRTIOFSD = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))
BUILT_IN = ("CONFIG_VIRTIO_FS=y", "CONFIG_VIRTIO_PCI=y", "CONFIG_VIRTIO_CONSOLE=y")  # there is no initramfs
NO_REGISTERS = "ptrace set fp regs failed"  # what user-mode Linux says on a CPU with AMX
MEMORY = "1024M"
USER = cgroup2_init.USER
GUARD = 'read -r _; rm -rf "$0"; kill -KILL 0'  # the end of its input is that of the process which boots guests


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


def has_amx(cpuinfo: str) -> bool:
    """Whether the CPU that ``/proc/cpuinfo`` describes has AMX, with which user-mode Linux can't run programs."""
    flags = (line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags"))
    return any("amx_tile" in line for line in flags)


def engine() -> str:
    """``uml`` or ``qemu``: what boots the guest on this host."""
    return os.environ.get(ENGINE) or ("qemu" if has_amx(CPUINFO.read_text()) else "uml")


def is_excused() -> bool:
    """Whether its CPU is why this host has no guest: with AMX user-mode Linux can't run, and QEMU can't be used."""
    return has_amx(CPUINFO.read_text()) and engine() == "qemu" and _lacking_for_qemu() is not None


def lacking() -> str | None:
    """Why there can be no guest on this host; ``None`` if there can."""
    if engine() == "qemu":
        why = _lacking_for_qemu()
        cause = f"{KERNEL} can't run programs on a CPU with AMX, and " if has_amx(CPUINFO.read_text()) else ""
        return why and f"{cause}QEMU can't be used: {why}"
    if shutil.which(KERNEL) is None:
        return f"no {KERNEL} on the PATH (Debian: apt-get install user-mode-linux)"
    if cgroup2_init.find_overlay(MODULES) is None:
        return f"no overlay.ko below {MODULES}"
    return None


def _lacking_for_qemu() -> str | None:
    if os.geteuid() != 0:
        return "only root may run virtiofsd"
    if shutil.which(QEMU) is None or not any(path.exists() for path in VIRTIOFSD):
        return f"no {QEMU} with virtiofsd (Debian: apt-get install qemu-system-x86)"
    if _cloud_kernel() is None:
        return "no kernel in /boot has virtiofs built in (Debian: apt-get install linux-image-6.12-cloud-amd64)"
    return None


def _cloud_kernel() -> Path | None:
    """A kernel that boots without an initramfs from a file system that QEMU shares; its modules are installed."""
    for config in sorted(Path("/boot").glob("config-*"), reverse=True):
        image = config.with_name(config.name.replace("config", "vmlinuz", 1))
        lines = config.read_text(errors="replace").splitlines()
        if image.exists() and set(BUILT_IN) <= set(lines) and cgroup2_init.find_overlay(_modules(image)) is not None:
            return image
    return None


def _modules(image: Path) -> Path:
    return Path("/lib/modules", image.name.removeprefix("vmlinuz-"))


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
        """Run the command to its end. :class:`NoGuest` when that takes longer than ``timeout`` seconds.

        An emulated CPU has four times as long, and the tests in its guest are told to be patient.
        """
        if engine() == "qemu":
            timeout, job = 4 * timeout, replace(job, env={"AGENTOS_TEST_PATIENCE": "240", **job.env})
        deadline = time.monotonic() + timeout
        is_new = self._kernel is None
        if self._kernel is None:
            self._kernel = _boot(self._alone)
        try:
            if is_new:
                _hear(self._kernel.channel, deadline)
            return _run_there(self._kernel, job, deadline)
        except (OSError, NoGuest) as error:
            why = no_guest(str(error), (self._kernel.work / "log").read_text(errors="replace"))
            self.close()
            raise NoGuest(why) from error
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
        (work / cgroup2_init.BOOT).write_text(json.dumps({"engine": engine(), "alone": alone}))
        init = work / "init"
        init.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n" + Path(cgroup2_init.__file__).read_text())
        init.chmod(0o755)
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        read, write = os.pipe()
        stack.callback(os.close, write)
        with theirs, open(read, "rb") as leash, (work / "log").open("wb") as log:
            kernel = subprocess.Popen(
                [*MANY_FILES, *(_qemu_command if engine() == "qemu" else _uml_command)(work, theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                process_group=0,  # as the leader linux.uml can't leave it
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(work)},
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


def no_guest(error: str, log: str) -> str:
    """What went wrong, with the kernel's last words; and what to do where it is a CPU that nobody knew to be one."""
    advice = f" ({KERNEL} can't run programs on this CPU: set {ENGINE}=qemu)" if NO_REGISTERS in log else ""
    return f"{error}{advice}: {log[-2000:]}"


def _uml_command(work: Path, channel: int) -> list[str]:
    """The kernel's command line; on one CPU, since its two host processes take turns at every system call."""
    cpus = sorted(os.sched_getaffinity(0))
    return [
        *("taskset", "-c", str(cpus[os.getpid() % len(cpus)])),  # not the same for all workers
        *(KERNEL, f"mem={MEMORY}", "umid=guest", f"uml_dir={work}"),
        *("root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={work}/init", f"{cgroup2_init.WORK}={work}"),
        *("con=null", "ssl=null", "con0=null,fd:2", f"con1=fd:{channel}"),
        *("panic=-1", "noreboot", "quiet", "cgroup_no_v1=all"),
        # Self-tests and benchmarks of drivers that nobody uses here take a second.
        *("cryptomgr.notests=1", "initcall_blacklist=raid6_select_algo,calibrate_xor_blocks,init_btrfs_fs"),
    ]


def _qemu_command(work: Path, channel: int) -> list[str]:
    """QEMU's command line, behind that of the program which shares the host's tree with the guest.

    It emulates the CPU: KVM within virtual machines fails now and then. The channel is a serial port of the
    guest's; it has one CPU, as with the other kernel.
    """
    image = _cloud_kernel()
    assert image is not None, "lacking() was asked"
    shares = next(path for path in VIRTIOFSD if path.exists())
    append = ("console=ttyS0 quiet panic=-1 cgroup_no_v1=all rootfstype=virtiofs root=tree ro", f"init={work}/init")
    qemu = [
        *(QEMU, "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio", "-cpu", "max", "-smp", "1"),
        *("-accel", "tcg", "-m", MEMORY, "-machine", "q35,memory-backend=memory"),
        *("-object", f"memory-backend-memfd,id=memory,size={MEMORY},share=on"),
        *("-chardev", f"socket,id=tree,path={work}/tree.sock"),
        *("-device", "vhost-user-fs-pci,chardev=tree,tag=tree", "-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=channel,fd={channel}", "-device", "virtserialport,nr=1,chardev=channel"),
        *("-kernel", str(image), "-append", " ".join((*append, f"{cgroup2_init.WORK}={work}"))),
    ]
    share = '"$0" --socket-path="$1" -o source=/ -o sandbox=chroot -o cache=always &'  # ends with QEMU
    wait = 'until [ -S "$1" ]; do kill -0 $! && sleep 0.01 || exit; done; shift; exec "$@"'
    return ["sh", "-c", f"{share} {wait}", str(shares), f"{work}/tree.sock", *qemu]


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
