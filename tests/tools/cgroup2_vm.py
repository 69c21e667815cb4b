"""A real Linux kernel with control groups of version 2, booted for one command: ``python cgroup2_vm.py -- COMMAND``.

The kernel is user-mode Linux (Debian: ``apt-get install user-mode-linux``), an ordinary program that needs neither
root nor KVM. It can't run programs on a CPU with AMX, whose registers are more than it can restore ("ptrace set fp regs
failed, errno 14"): there QEMU boots Debian's cloud kernel, which needs root. ``CGROUP2_VM_ENGINE=qemu`` (or ``uml``)
chooses by hand. The guest sees the host's whole file tree, below a file system in memory that takes all writes and is
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

KERNEL = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
ENGINE = "CGROUP2_VM_ENGINE"
CPUINFO = Path("/proc/cpuinfo")
QEMU = "qemu-system-x86_64"
VIRTIOFSD = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))
BUILT_IN = ("CONFIG_VIRTIO_FS=y", "CONFIG_VIRTIO_PCI=y", "CONFIG_VIRTIO_CONSOLE=y")  # there is no initramfs
NO_REGISTERS = "ptrace set fp regs failed"  # what user-mode Linux says on a CPU with AMX
MEMORY = "1024M"
JOB = "CGROUP2_VM_JOB"  # the variable that names our directory on the host to the guest's first process
CGROUPS = "/sys/fs/cgroup"
USER = 1000  # uid and gid
POWER_OFF = 0x4321FEDC
MOVE, NOSUID, NODEV, NOEXEC = 8192, 2, 4, 8
FINIT_MODULE, COMPRESSED = 313, 4  # x86_64; a flag of it

GUEST_FILE_SYSTEMS = (
    ("proc", "/proc", NOSUID | NODEV | NOEXEC, ""),
    ("sysfs", "/sys", NOSUID | NODEV | NOEXEC, ""),
    ("cgroup2", CGROUPS, NOSUID | NODEV | NOEXEC, "nsdelegate,memory_recursiveprot"),
    ("devtmpfs", "/dev", NOSUID, ""),
    ("devpts", "/dev/pts", NOSUID | NOEXEC, "ptmxmode=0666,mode=620,gid=5"),
    ("tmpfs", "/dev/shm", NOSUID | NODEV, "mode=1777"),
    ("tmpfs", "/run", NOSUID | NODEV, "mode=755"),
    ("tmpfs", "/var/lib/agentos-host-ids", NOSUID | NODEV, "mode=700"),  # the host's may be root's, and we not
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
    if not any(MODULES.rglob("overlay.ko")):
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
        if image.exists() and set(BUILT_IN) <= set(lines) and _overlay(_modules(image)) is not None:
            return image
    return None


def _modules(image: Path) -> Path:
    return Path("/lib/modules", image.name.removeprefix("vmlinuz-"))


def _overlay(modules: Path) -> Path | None:
    return next(modules.rglob("overlay.ko*"), None)


def run(job: Job, timeout: float = 300) -> Ended:
    """Boot, run the command, power off. :class:`NoGuest` when that takes longer than ``timeout`` seconds.

    An emulated CPU has four times as long, and the tests in its guest are told to be patient.
    """
    if engine() == "qemu":
        timeout, job = 4 * timeout, replace(job, env={"AGENTOS_TEST_PATIENCE": "240", **job.env})
    with tempfile.TemporaryDirectory(prefix="aos-vm-", dir="/tmp") as directory, contextlib.ExitStack() as stack:
        work = Path(directory)
        (work / "mnt").mkdir()
        (work / "job.json").write_text(json.dumps({**vars(job), "engine": engine()}))
        init = work / "init"
        init.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n" + Path(__file__).read_text())
        init.chmod(0o755)
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(3)]
        log = stack.enter_context((work / "log").open("wb"))
        command = _qemu_command if engine() == "qemu" else _uml_command
        kernel = subprocess.Popen(
            ["timeout", "--signal=KILL", f"{timeout + 20:g}", *command(work, [end.fileno() for _, end in pairs])],
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
            out, err, status = _outputs([ours for ours, _ in pairs], time.monotonic() + timeout)
            kernel.wait(timeout=60)
            code = int(status)
        except (TimeoutError, subprocess.TimeoutExpired, ValueError) as error:
            raise NoGuest(no_guest(str(error), (work / "log").read_text(errors="replace"))) from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(kernel.pid, signal.SIGKILL)
            kernel.wait()
        return Ended(code if code >= 0 else 128 - code, out, err)


def no_guest(error: str, log: str) -> str:
    """What went wrong, with the kernel's last words; and what to do where it is a CPU that nobody knew to be one."""
    advice = f" ({KERNEL} can't run programs on this CPU: set {ENGINE}=qemu)" if NO_REGISTERS in log else ""
    return f"{error}{advice}: {log[-2000:]}"


def _uml_command(work: Path, consoles: list[int]) -> list[str]:
    """The kernel's command line; on one CPU, since its two host processes take turns at every system call."""
    return [
        *("taskset", "-c", str(min(os.sched_getaffinity(0)))),
        *(KERNEL, f"mem={MEMORY}", "umid=guest", f"uml_dir={work}"),
        *("root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={work}/init", f"{JOB}={work}"),
        *("con=null", "ssl=null", "con0=null,fd:2"),
        *(f"con{number}=null,fd:{fd}" for number, fd in enumerate(consoles, start=1)),
        *("panic=-1", "noreboot", "quiet", "cgroup_no_v1=all"),
        # Self-tests and benchmarks of drivers that nobody uses here take a second.
        *("cryptomgr.notests=1", "initcall_blacklist=raid6_select_algo,calibrate_xor_blocks,init_btrfs_fs"),
    ]


def _qemu_command(work: Path, channels: list[int]) -> list[str]:
    """QEMU's command line, behind that of the program which shares the host's tree with the guest.

    It emulates the CPU: KVM within virtual machines fails now and then. Each channel is a serial port of the guest's;
    it has one CPU, as with the other kernel.
    """
    image = _cloud_kernel()
    assert image is not None, "lacking() was asked"
    shares = next(path for path in VIRTIOFSD if path.exists())
    ports = [
        argument
        for number, fd in enumerate(channels, start=1)
        for argument in (
            *("-chardev", f"socket,id=port{number},fd={fd}"),
            *("-device", f"virtserialport,nr={number},chardev=port{number}"),
        )
    ]
    append = ("console=ttyS0 quiet panic=-1 cgroup_no_v1=all rootfstype=virtiofs root=tree ro", f"init={work}/init")
    qemu = [
        *(QEMU, "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio", "-cpu", "max", "-smp", "1"),
        *("-accel", "tcg", "-m", MEMORY, "-machine", "q35,memory-backend=memory"),
        *("-object", f"memory-backend-memfd,id=memory,size={MEMORY},share=on"),
        *("-chardev", f"socket,id=tree,path={work}/tree.sock"),
        *("-device", "vhost-user-fs-pci,chardev=tree,tag=tree", "-device", "virtio-serial-pci", *ports),
        *("-kernel", str(image), "-append", " ".join((*append, f"{JOB}={work}"))),
    ]
    share = '"$0" --socket-path="$1" -o source=/ -o sandbox=chroot -o cache=always &'  # ends with QEMU
    wait = 'until [ -S "$1" ]; do kill -0 $! && sleep 0.01 || exit; done; shift; exec "$@"'
    return ["sh", "-c", f"{share} {wait}", str(shares), f"{work}/tree.sock", *qemu]


def _outputs(ends: list[socket.socket], deadline: float) -> list[str]:
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
    return [got[end].decode("utf-8", "replace") for end in ends]


# From here on: the guest's first process.


def _mount(libc: Any, source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} at {target}: {os.strerror(ctypes.get_errno())}")


def _put(path: str, text: str) -> None:
    Path(path).write_text(text)


def _make_root(libc: Any, work: str, engine: str) -> None:
    """The host's tree with all writes in memory as our root, and a kernel's own file systems in it."""
    found = _overlay(MODULES if engine == "uml" else Path("/lib/modules", os.uname().release))
    assert found is not None, "the host's side has found it"
    module = os.open(found, os.O_RDONLY)
    libc.syscall(FINIT_MODULE, module, b"", 0 if found.suffix == ".ko" else COMPRESSED)
    top = f"{work}/mnt"
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


def _open_channel(number: int, engine: str) -> int:
    """A console or, with QEMU, a serial port, which goes by this number on the host's side."""
    if engine == "uml":
        console = os.open(f"/dev/tty{number}", os.O_RDWR | os.O_NOCTTY)
        tty.setraw(console)
        return console
    while not (ports := list(Path("/dev").glob(f"vport*p{number}"))):  # they appear a little after the boot
        time.sleep(0.01)
    return os.open(ports[0], os.O_RDWR)


def _run_command(libc: Any, job: dict[str, Any]) -> None:
    """Start it on pipes, since it shall not see a terminal; copy what it writes until it ends; note how it ended."""
    pipes: dict[int, int] = {}
    outputs = []
    *streams, last_word = (_open_channel(number, job["engine"]) for number in (1, 2, 3))
    for console in streams:
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
    os.write(last_word, str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
    for console in (*consoles, last_word):
        if os.isatty(console):
            termios.tcdrain(console)


def _guest(work: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        job = json.loads(Path(work, "job.json").read_text())
        _make_root(libc, work, job["engine"])
        runner = os.fork()
        if runner == 0:
            _run_command(libc, job)
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
    if os.getpid() == 1 and JOB in os.environ:
        _guest(os.environ[JOB])
    sys.exit(main())
