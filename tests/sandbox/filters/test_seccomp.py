"""The profiles: against a naive model, call by call, and against the kernel that enforces them."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.filters import bpf, profile, seccomp
from agentos.sandbox.filters.bpf import SyscallData
from agentos.sandbox.filters.profile import ALLOW, ARCHITECTURES, KILL_PROCESS, Profile, errno_verdict
from agentos.sandbox.filters.seccomp import build_filter
from agentos.sandbox.filters.syscall_numbers import NUMBERS
from tests.support.wire import PATIENCE

HERE = os.uname().machine
HIGH = 1 << 32  # a bit that the kernel doesn't look at where it takes an int

EPERM = set(
    """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark finit_module
    fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp
    kexec_file_load kexec_load keyctl lsm_set_self_attr migrate_pages mount mount_setattr move_mount move_pages
    name_to_handle_at open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd pivot_root process_madvise
    process_mrelease process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname
    sethostname setns settimeofday swapoff swapon syslog umount2 userfaultfd vhangup
    """.split()  # noqa: SIM905
)
ENOSYS = set(
    """
    _sysctl afs_syscall clone3 create_module epoll_ctl_old epoll_wait_old get_kernel_syms get_thread_area getpmsg
    listmount listns lookup_dcookie memfd_secret modify_ldt nfsservctl openat2 putpmsg query_module security
    set_thread_area statmount sysfs tuxcall uselib ustat vserver
    """.split()  # noqa: SIM905
)
NOT_STRICT = {
    *("io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"),
    *("set_mempolicy_home_node", "lsm_get_self_attr", "lsm_list_modules", "file_getattr", "file_setattr"),
}
MODE_AT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}


def expected(profile: str, architecture: str, number: int, args: tuple[int, ...]) -> int:
    """The profiles once more, in plain words."""
    if architecture == "x86_64" and 0x40000000 <= number < 0xFFFFFFFF:
        return KILL_PROCESS
    name = {value: key for key, value in NUMBERS[architecture].items()}.get(number)
    low = [value % HIGH for value in (*args, 0, 0, 0, 0, 0, 0)]
    if name is None or name in ENOSYS or (profile == "strict" and name in NOT_STRICT):
        return errno_verdict(errno.ENOSYS)
    if name == "socket" and low[0] == 16:
        return errno_verdict(errno.EINVAL)
    if name in ("socket", "socketpair") and low[0] not in (1, 2, 10):
        return errno_verdict(errno.EAFNOSUPPORT)
    if name == "socket" and low[2] not in (0, 1, 6, 17, 58):
        return errno_verdict(errno.EPROTONOSUPPORT)
    if name == "memfd_create" and low[1] & 0x3FFFFE0:
        return errno_verdict(errno.EINVAL)
    if profile == "strict" and name == "memfd_create" and not low[1] & 8:
        return errno_verdict(errno.EACCES)
    huge = {"mmap": low[3] & 0x40000, "memfd_create": low[1] & 4, "shmget": low[2] & 0o4000}
    if huge.get(name):
        return errno_verdict(errno.ENOMEM)
    refused = any(
        (
            name in EPERM,
            name == "clone" and low[0] & 0x7E020000,
            name == "unshare" and args and args[0] % (1 << 64) & ~0x40600,
            name == "seccomp" and low[1] & 8,
            name == "ioctl" and low[1] in (0x5412, 0x541C, 0x5423),
            name == "personality" and low[0] not in (0, 0xFFFFFFFF),
            name == "fcntl" and low[1] in (1024, 1040),
            name == "kill" and low[0] == 1 and low[1] & 0x60,
            name == "pidfd_send_signal" and low[1] & 0x60,
            name in MODE_AT and low[MODE_AT[name]] & 0o6000,
            name == "open" and low[2] & 0o6000 and low[1] & 0o20000100,
            name == "openat" and low[3] & 0o6000 and low[2] & 0o20000100,
        )
    )
    return errno_verdict(errno.EPERM) if refused else ALLOW


def verdict(profile: str, name: str, *args: int, architecture: str = "x86_64") -> int:
    data = SyscallData(NUMBERS[architecture][name], ARCHITECTURES[architecture], args)
    return bpf.run(build_filter(profile, architecture), data).value


@pytest.mark.parametrize("architecture", sorted(NUMBERS))
def test_for_root_inside_set_id_bits_are_allowed_and_others_ids_are_real_or_pretended(architecture: str) -> None:
    def changes(inside: seccomp.Inside) -> dict[str, int]:
        plain, root = build_filter("standard", architecture), build_filter("standard", architecture, inside=inside)
        changed = {}
        for name, number in NUMBERS[architecture].items():
            for args in ((), (0, 0o4755), (0, 0, 0o4755), (0, 0o100, 0o4755), (0, 0, 0o100, 0o4755)):
                data = SyscallData(number, ARCHITECTURES[architecture], args)
                if bpf.run(plain, data).value != (now := bpf.run(root, data).value):
                    changed[name] = now
        return changed

    def those(names: str, value: int) -> dict[str, int]:
        return dict.fromkeys(set(names.split()) & NUMBERS[architecture].keys(), value)

    modes = those(f"open openat {' '.join(MODE_AT)}", ALLOW)
    ids = "setuid setgid setreuid setregid setresuid setresgid setgroups capset chown lchown fchown fchownat"
    assert changes("block") == modes | those("inotify_init inotify_init1", errno_verdict(errno.EMFILE))
    assert changes("pretended") == modes | those(ids, errno_verdict(0))


both_profiles = pytest.mark.parametrize("profile", sorted(seccomp.PROFILES))
both_architectures = pytest.mark.parametrize("architecture", sorted(NUMBERS))


@both_profiles
@both_architectures
def test_every_number_gets_the_verdict_that_is_expected(profile: str, architecture: str) -> None:
    program = build_filter(profile, architecture)
    numbers = [*range(1200), *range(0x3FFFFF00, 0x40000400), *range(0x7FFFFFF0, 0x80000010), *range(2**32 - 9, 2**32)]

    for number in numbers:
        for args in (
            (),
            (1, 2, 6, 0o644),
            (16, 3, 0),
            (0, 0x7),
            (-1, -1, -1, -1, -1, -1),
            (HIGH | 17, HIGH, HIGH, HIGH),
        ):
            value = bpf.run(program, SyscallData(number, ARCHITECTURES[architecture], args)).value
            assert value == expected(profile, architecture, number, args), (number, args)


@both_profiles
@both_architectures
def test_without_a_memory_counter_only_the_calls_that_hold_memory_unseen_are_refused_besides(
    profile: str, architecture: str
) -> None:
    counted, uncounted = (build_filter(profile, architecture, counted=counted) for counted in (True, False))

    def differ(number: int) -> bool:
        data = SyscallData(number, ARCHITECTURES[architecture], ())
        return bpf.run(counted, data).value != bpf.run(uncounted, data).value

    names = {name for name, number in NUMBERS[architecture].items() if differ(number)}
    assert names == {"shmget", "msgget", "semget", "memfd_create", "vmsplice"}
    for name in names:
        data = SyscallData(NUMBERS[architecture][name], ARCHITECTURES[architecture], (-1, 1, 1))
        assert bpf.run(uncounted, data).value == errno_verdict(errno.ENOSYS)


@both_profiles
@both_architectures
@pytest.mark.parametrize("kind", ["shared", "shared and validated", "private", "droppable", "of a file"])
def test_a_shared_anonymous_mapping_is_refused_just_where_nobody_counts_memory(
    profile: str, architecture: str, kind: str
) -> None:
    flags = {"shared": 0x21, "shared and validated": 0x23, "private": 0x22, "droppable": 0x28, "of a file": 0x01}[kind]
    data = SyscallData(
        NUMBERS[architecture]["mmap"], ARCHITECTURES[architecture], (0, 1 << 20, 3, flags | 0x4000, 2**64 - 1)
    )

    answers = [bpf.run(build_filter(profile, architecture, counted=counted), data).value for counted in (True, False)]

    assert answers == [ALLOW, errno_verdict(errno.EPERM) if kind.startswith("shared") else ALLOW]


@both_profiles
@both_architectures
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("noexec", [True, False])
def test_huge_pages_which_no_group_counts_are_never_to_be_had(
    profile: str, architecture: str, counted: bool, noexec: bool
) -> None:
    program = build_filter(profile, architecture, counted=counted, memfd_noexec=noexec)
    calls = {"mmap": (0, 1, 3, 0x40022, 2**64 - 1, 0), "memfd_create": (0, 0xC), "shmget": (0, 1, 0o5600)}

    answers = {
        name: bpf.run(program, SyscallData(NUMBERS[architecture][name], ARCHITECTURES[architecture], args)).value
        for name, args in calls.items()
    }

    other = errno.ENOMEM if counted else errno.ENOSYS
    assert answers == {
        "mmap": errno_verdict(errno.ENOMEM),
        "memfd_create": errno_verdict(other),
        "shmget": errno_verdict(other),
    }


@both_architectures
def test_where_linux_itself_refuses_executable_memory_files_strict_refuses_those_that_ask_to_be(
    architecture: str,
) -> None:
    number = NUMBERS[architecture]["memfd_create"]
    program = build_filter("strict", architecture, memfd_noexec=True)

    def answer(flags: int) -> int:
        return bpf.run(program, SyscallData(number, ARCHITECTURES[architecture], (0, flags))).value

    assert {flags: answer(flags) for flags in (0, 1, 8, 0x10, 0x11, 0x18)} == {
        **dict.fromkeys((0, 1, 8), ALLOW),
        **dict.fromkeys((0x10, 0x11, 0x18), errno_verdict(errno.EACCES)),
    }
    assert build_filter("standard", architecture, memfd_noexec=True) == build_filter("standard", architecture)


NUMBERS_OF_RULES = (
    *(0, 1, 2, 8, 10, 16, 17, 38, 40, 132, 255, 0o4755, 0o2755, 0o100, 0o20200000, 0x80, 0x200, 0x5412, 0x541C),
    *(0x40000, 1040),
)
INTERESTING = st.sampled_from([*NUMBERS_OF_RULES, *(1 << bit for bit in range(64))])
ARGUMENT = INTERESTING | st.builds(lambda low: HIGH | low, INTERESTING) | st.integers(0, 2**64 - 1)
CALLS = (
    *("clone", "unshare", "socket", "socketpair", "ioctl", "personality", "seccomp", "open", "openat", "memfd_create"),
    *("mmap", "shmget", "fcntl"),
    *MODE_AT,
)


@given(
    st.sampled_from(sorted(seccomp.PROFILES)),
    st.sampled_from(sorted(NUMBERS)),
    st.sampled_from(CALLS) | st.integers(0, 2**32 - 1),
    st.tuples(*[ARGUMENT] * 6),
)
def test_arguments_get_the_verdict_that_is_expected(
    profile: str, architecture: str, call: str | int, args: tuple[int, ...]
) -> None:
    number = call if isinstance(call, int) else NUMBERS[architecture].get(call, 0)

    value = bpf.run(build_filter(profile, architecture), SyscallData(number, ARCHITECTURES[architecture], args)).value

    assert value == expected(profile, architecture, number, args)


@both_profiles
@both_architectures
def test_the_calls_of_any_other_architecture_kill(profile: str, architecture: str) -> None:
    others = {0x40000003, 0x40000028, 0, 0xFFFFFFFF, *ARCHITECTURES.values()} - {ARCHITECTURES[architecture]}

    for other in others:  # i386 and ARM among them
        for number in range(500):
            assert bpf.run(build_filter(profile, architecture), SyscallData(number, other)).value == KILL_PROCESS


@both_profiles
@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_flag_in_high_company_makes_a_namespace(profile: str, flag: int) -> None:
    for args in ((flag,), (flag | 17,), (HIGH | flag,), (2**64 - 1,)):
        assert verdict(profile, "clone", *args) == errno_verdict(errno.EPERM)
        assert verdict(profile, "unshare", *args) == errno_verdict(errno.EPERM)


@both_profiles
def test_threads_forks_and_vforks_are_allowed(profile: str) -> None:
    thread, fork, vfork = 0x3D0F00, 0x1200011, 0x4111

    assert {verdict(profile, "clone", flags) for flags in (thread, fork, vfork)} == {ALLOW}
    assert verdict(profile, "unshare", 0x600) == ALLOW


@both_profiles
def test_an_unshare_flag_that_is_new_is_refused_like_the_others(profile: str) -> None:
    for bit in (0x80, 0x100000, 1 << 33, 1 << 63):
        assert verdict(profile, "unshare", bit) == errno_verdict(errno.EPERM)


@both_profiles
def test_the_kernel_ignores_the_high_word_of_an_ioctl_and_so_does_the_filter(profile: str) -> None:
    for command in (0x5412, HIGH | 0x5412, 0xFFFFFFFF_0000541C):
        assert verdict(profile, "ioctl", 0, command) == errno_verdict(errno.EPERM)
    assert verdict(profile, "ioctl", 0x5412, 0x5413) == ALLOW


@both_profiles
def test_a_filter_is_small_and_quick(profile: str) -> None:
    for architecture, table in NUMBERS.items():
        program = build_filter(profile, architecture)
        steps = [bpf.run(program, SyscallData(number, ARCHITECTURES[architecture])).steps for number in table.values()]
        assert len(program) < 225
        assert sum(steps) / len(steps) < 13
        assert max(steps) <= 18


@both_profiles
def test_the_bytes_are_those_of_the_filter(profile: str) -> None:
    assert bpf.unpack(seccomp.filter_bytes(profile, HERE)) == build_filter(profile, HERE)


def test_a_rule_for_a_call_that_no_architecture_has_is_refused() -> None:
    with pytest.raises(ValueError, match="opennat"):
        profile.compile_filter(Profile("mine", {"opennat": ALLOW}, ALLOW), "x86_64")


def test_an_unknown_profile_or_architecture_is_refused() -> None:
    with pytest.raises(KeyError, match="relaxed"):
        build_filter("relaxed", "x86_64")
    with pytest.raises(KeyError, match="riscv64"):
        build_filter("strict", "riscv64")


# The numbers, against the headers of the machine.


def defined(header: Path) -> dict[str, int]:
    if not header.exists():
        pytest.skip(f"no {header} (linux-libc-dev)")
    return {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    }


def test_the_numbers_of_x86_64_are_those_of_the_headers() -> None:
    known = defined(Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"))

    ours = NUMBERS["x86_64"]
    assert known.items() <= ours.items()
    assert all(
        number > max(known.values()) or name in ("uretprobe", "uprobe") for name, number in ours.items() - known.items()
    )


def test_the_numbers_of_aarch64_are_those_of_the_generic_headers() -> None:
    known = defined(Path("/usr/include/asm-generic/unistd.h"))
    end = known.pop("syscalls")
    other = {"arch_specific_syscall", "sync_file_range2", "fstatat"}
    generic = {name: number for name, number in known.items() if name not in other and number not in range(403, 424)}
    generic["newfstatat"] = known["fstatat"]

    assert {name: number for name, number in NUMBERS["aarch64"].items() if number < end} == generic


def test_no_number_is_given_twice() -> None:
    for table in NUMBERS.values():
        assert len(set(table.values())) == len(table)


# The kernel.

CHILD = """
import ctypes, json, mmap, os, sys
job = json.load(sys.stdin)
if job["uid"] is not None:
    os.setgroups([])
    os.setresgid(job["uid"], job["uid"], job["uid"])
    os.setresuid(job["uid"], job["uid"], job["uid"])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *args):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(number, *map(ctypes.c_ulong, args)) == -1 else 0
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
if job["filter"]:
    filters = bytes.fromhex(job["filter"])
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.syscall(job["seccomp"], 1, 0, ctypes.byref(Program(len(filters) // 8, filters))) == 0
if job.get("code"):
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes.fromhex(job["code"]))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    print(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid(), flush=True)
elif job.get("run"):
    os.execv(job["run"][0], job["run"])
else:
    print(json.dumps([call(*each) for each in job["calls"]]), flush=True)
os._exit(0)
"""
NOBODY = 65534
identities = pytest.mark.parametrize("uid", [None, NOBODY] if os.geteuid() == 0 else [None])
x86_only = pytest.mark.skipif(HERE != "x86_64", reason="x86_64 has more than one table of system calls")


def child(profile: str | None, uid: int | None = None, **job: object) -> subprocess.CompletedProcess[str]:
    """Run calls, machine code or a program in a child under a filter, or without one."""
    filters = seccomp.filter_bytes(profile, HERE).hex() if profile else None
    everything = {"filter": filters, "seccomp": NUMBERS[HERE]["seccomp"], "uid": uid, **job}
    return subprocess.run(
        [sys.executable, "-I", "-c", CHILD],
        input=json.dumps(everything),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def errors(profile: str | None, calls: list[tuple[str, tuple[int, ...]]], uid: int | None = None) -> list[int]:
    done = child(profile, uid, calls=[(NUMBERS[HERE][name], *args) for name, args in calls])
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


ATTEMPTS: list[tuple[str, tuple[int, ...]]] = [
    ("unshare", (0x10000000,)),  # CLONE_NEWUSER
    ("unshare", (HIGH | 0x40000000,)),
    ("clone", (0x10000011,)),
    ("clone", (HIGH | 0x20000000,)),
    ("clone3", (0, 0)),
    ("setns", (2**64 - 1, 0)),
    ("socket", (40, 1, 0)),  # AF_VSOCK
    ("socket", (38, 5, 0)),  # AF_ALG
    ("socket", (16, 3, 0)),  # AF_NETLINK
    ("socket", (17, 3, 0)),  # AF_PACKET
    ("socket", (HIGH | 16, 3, 0)),
    ("socket", (2, 1, 132)),  # SCTP
    ("socketpair", (30, 1, 0, 0)),  # AF_TIPC
    ("ioctl", (0, 0x5412, 0)),  # TIOCSTI
    ("ioctl", (0, HIGH | 0x541C, 0)),  # TIOCLINUX
    ("personality", (0x40000,)),  # ADDR_NO_RANDOMIZE
    ("personality", (HIGH | 0x40000,)),
    ("seccomp", (1, 8, 0)),  # a listener
    ("fchmod", (2**64 - 1, 0o4755)),
    ("fchmodat", (2**64 - 1, 0, 0o4755)),
    ("openat", (2**64 - 1, 0, 0o101, 0o4755)),
    ("fchmod", (2**64 - 1, 0o2755)),
    ("fchmodat", (2**64 - 1, 0, HIGH | 0o2755)),
    ("openat", (2**64 - 1, 0, 0o101, 0o2755)),
    ("mknodat", (2**64 - 1, 0, 0o102755, 0)),
]


@both_profiles
@identities
def test_the_kernel_refuses_what_the_interpreter_refuses(profile: str, uid: int | None) -> None:
    everything = [(name, (2**64 - 1,) * 6) for name in NUMBERS[HERE]]  # arguments that no call can use
    calls = [
        (name, args)
        for name, args in [*ATTEMPTS, *everything]
        if verdict(profile, name, *args, architecture=HERE) not in (ALLOW, KILL_PROCESS)
    ]
    assert len(calls) > len(ATTEMPTS) + len((EPERM | ENOSYS) & set(NUMBERS[HERE]))

    answers = errors(profile, calls, uid)

    assert answers == [verdict(profile, name, *args, architecture=HERE) & 0xFFFF for name, args in calls]


def test_without_a_filter_the_kernel_answers_otherwise() -> None:
    harmless = ("clone3", "ioctl", "personality", "fchmod", "fchmodat", "openat", "seccomp")
    calls = [(name, args) for name, args in ATTEMPTS if name in harmless or (name, args[0] % HIGH) == ("socket", 16)]

    answers = errors(None, calls)

    assert len(calls) == 14
    for (name, args), answer in zip(calls, answers, strict=True):
        assert answer != verdict("standard", name, *args, architecture=HERE) & 0xFFFF, name


@both_profiles
@identities
def test_what_programs_need_reaches_the_kernel(profile: str, uid: int | None) -> None:
    calls: list[tuple[str, tuple[int, ...]]] = [
        *(("socket", (family, 1, 0)) for family in (1, 2, 10)),
        *(("personality", (value,)) for value in (0xFFFFFFFF, 0)),
        *(("unshare", (0x600,)), ("getpid", ()), ("pidfd_open", (1 << 20, 0))),
    ]

    answers = errors(profile, calls, uid)

    assert answers == errors(None, calls, uid)
    assert answers.count(0) >= 6, "of 8: pidfd_open finds nobody, and a host may have no IPv6"


@x86_only
@both_profiles
@identities
def test_an_x32_call_kills(profile: str, uid: int | None) -> None:
    assert child(profile, uid, calls=[[0x40000000 | NUMBERS["x86_64"]["getpid"]]]).returncode == -signal.SIGSYS


@x86_only
@both_profiles
@identities
def test_a_32_bit_call_kills(profile: str, uid: int | None) -> None:
    getpid = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3".hex()  # mov $20, %eax; int $0x80; ret

    without, filtered = child(None, uid, code=getpid), child(profile, uid, code=getpid)

    if without.stdout == "True\n":
        assert filtered.returncode == -signal.SIGSYS
    else:  # a kernel without IA32, or user-mode Linux, where it is a 64-bit call
        assert filtered.stdout != "True\n"


@both_profiles
def test_the_number_minus_one_is_only_unknown(profile: str) -> None:
    assert json.loads(child(profile, calls=[[2**64 - 1]]).stdout) == [errno.ENOSYS]


WORK = """
import asyncio, concurrent.futures, ctypes, multiprocessing, os, pathlib, shutil, socket, sqlite3, ssl, stat, subprocess
import sys, tempfile, threading
def square(number):
    return number * number
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "file")
    path.write_text("some text")
    path.chmod(0o755)
    for mode in (0o4755, 0o2755):
        try:
            path.chmod(mode)
        except PermissionError:
            pass
    assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    shutil.copytree(folder, folder + ".copy")
    shutil.rmtree(folder + ".copy")
    database = sqlite3.connect(path.with_name("database"))
    database.execute("create table t (x)")
    database.commit()
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    server.accept()[0].send(b"hello")
    assert client.recv(9) == b"hello"
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(square, range(5))) == [0, 1, 4, 9, 16]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
    async def main():
        process = await asyncio.create_subprocess_exec("sh", "-c", "ls / | sort | wc -l", stdout=-1)
        return (await process.communicate())[0]
    assert int(asyncio.run(main())) > 3
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout == b"1\\n"
    if compiler := shutil.which("cc"):
        source = path.with_name("p.c")
        source.write_text('#include <stdio.h>\\nint main(void) { puts("compiled"); }')
        subprocess.run([compiler, "-o", path.with_name("p"), source], check=True)
        assert subprocess.run([path.with_name("p")], capture_output=True, check=True).stdout == b"compiled\\n"
print("all done")
"""


@both_profiles
def test_python_programs_shells_and_compilers_work(profile: str, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK)

    done = child(profile, run=[shutil.which("env"), sys.executable, "-I", str(script)])

    assert (done.returncode, done.stdout) == (0, "all done\n"), done.stderr
