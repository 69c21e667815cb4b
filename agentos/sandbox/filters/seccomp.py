"""Seccomp profiles: which system calls a sandboxed program may make.

``standard`` allows every system call in the table of numbers that no rule denies; ``strict`` only those that Python
programs, compilers and shells need. Both return ENOSYS for a number that isn't in the table: system calls of later
kernels stay denied until they have been reviewed, and programs have fallbacks for ENOSYS.

A filter sees the registers, all 64 bits of each, but not the memory that they point to. Where the kernel takes
an ``int``, only the low word counts. A call with arguments in memory is allowed or denied as a whole: clone3 and
openat2 return ENOSYS, and programs fall back to clone and openat.

Both deny huge pages, which no memory cgroup counts. If no cgroup counts a program's memory, they also deny memory that
no watcher can find: System V segments, queues and semaphores, which outlive their processes; memfds, which may be in
transit through a socket; shared anonymous mappings, whose pages stay when no process has them in its page tables; and
vmsplice, which keeps pages in a pipe: one byte of each huge page is enough (docs/decisions/0086).

``strict`` denies executable memfds: with vm.memfd_noexec at 2 those that ask for it (MFD_EXEC), otherwise all that are
not made with MFD_NOEXEC_SEAL.
"""

import errno
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal

from msgspec.structs import replace

from . import bpf
from .bpf import Instruction
from .profile import (
    ALLOW,
    ARCHITECTURES,
    AnyBit,
    NoBit,
    NoneOf,
    OneOf,
    Profile,
    Refusal,
    Rule,
    compile_filter,
    errno_verdict,
)
from .syscall_numbers import NUMBERS


def _rules_for(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


# CLONE_NEWNS CGROUP UTS IPC USER PID NET. CLONE_NEWTIME (0x80) is part of the exit signal in clone(2), no namespace.
_CLONE_NAMESPACES = 0x7E02_0000
_UNSHARE_ALLOWED = 0x200 | 0x400 | 0x40000  # CLONE_FS FILES SYSVSEM
_FAMILIES = (1, 2, 10)  # AF_UNIX AF_INET AF_INET6
_NETLINK = 16  # AF_NETLINK
_PROTOCOLS = (0, 1, 6, 17, 58)  # 0 (default), ICMP (and AF_UNIX itself), TCP, UDP, ICMPv6; not SCTP, DCCP, SMC
_TERMINAL_IOCTLS = (0x5412, 0x541C, 0x5423)  # TIOCSTI TIOCLINUX TIOCSETD: inject input, line disciplines
_SET_ID = 0o6000  # set-uid or set-gid files in a host directory would give the agent's uid or gid to other users
_REAL_TIME = 0x60  # bits that are set in signal numbers from 32 on, and in none below
_CREATE_FLAGS = 0o100 | 0o20000000  # O_CREAT __O_TMPFILE: without them the mode register is undefined
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB, _MFD_HUGETLB = 0x1, 0x20, 0x40000, 0x4
_NO_HUGE_MAPPING = Refusal(errno.ENOMEM, (AnyBit(3, _MAP_HUGETLB),))
# Flags that Linux 6.18 doesn't know fail as there: Chromium ends where memfd_create("", ~0) isn't EINVAL.
_NO_STRANGE_MEMFD = Refusal(errno.EINVAL, (AnyBit(1, 0x3FF_FFE0),))
_NO_HUGE_MEMFD = Refusal(errno.ENOMEM, (AnyBit(1, _MFD_HUGETLB),))


def _no_set_id(mode: int, flags: int | None = None) -> tuple[Refusal, ...]:
    creates = () if flags is None else (AnyBit(flags, _CREATE_FLAGS),)
    return (Refusal(errno.EPERM, (AnyBit(mode, _SET_ID), *creates)),)


_DENIED: Mapping[str, Rule] = {
    # Namespaces and root directories.
    **_rules_for("setns chroot pivot_root mount umount2", errno_verdict(errno.EPERM)),
    **_rules_for(
        "fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr", errno_verdict(errno.EPERM)
    ),
    # Other processes.
    **_rules_for(
        "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease", errno_verdict(errno.EPERM)
    ),
    **_rules_for("pidfd_getfd kcmp move_pages migrate_pages", errno_verdict(errno.EPERM)),
    # Large attack surface for little use, and source of most kernel exploits. io_uring would also bypass this filter.
    **_rules_for(
        "io_uring_setup io_uring_enter io_uring_register bpf userfaultfd perf_event_open", errno_verdict(errno.EPERM)
    ),
    **_rules_for(
        "keyctl add_key request_key fanotify_init fanotify_mark lsm_set_self_attr", errno_verdict(errno.EPERM)
    ),
    **_rules_for("name_to_handle_at open_by_handle_at", errno_verdict(errno.EPERM)),
    # The machine. adjtimex can also only read, but its mode is in memory.
    **_rules_for(
        "kexec_load kexec_file_load init_module finit_module delete_module reboot", errno_verdict(errno.EPERM)
    ),
    **_rules_for("swapon swapoff iopl ioperm syslog acct quotactl quotactl_fd vhangup", errno_verdict(errno.EPERM)),
    **_rules_for(
        "settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname", errno_verdict(errno.EPERM)
    ),
    # Absent from many kernels, so programs have fallbacks; the first two have their arguments in memory.
    **_rules_for("clone3 openat2 memfd_secret modify_ldt statmount listmount listns", errno_verdict(errno.ENOSYS)),
    **_rules_for(
        "create_module get_kernel_syms query_module nfsservctl getpmsg putpmsg afs_syscall", errno_verdict(errno.ENOSYS)
    ),
    **_rules_for("tuxcall security vserver epoll_ctl_old epoll_wait_old lookup_dcookie", errno_verdict(errno.ENOSYS)),
    **_rules_for("_sysctl uselib ustat sysfs set_thread_area get_thread_area", errno_verdict(errno.ENOSYS)),
}

_SET_ID_RULES: Mapping[str, Rule] = {
    **_rules_for("chmod fchmod creat mknod", _no_set_id(mode=1)),
    **_rules_for("fchmodat fchmodat2 mknodat", _no_set_id(mode=2)),
    "open": _no_set_id(mode=2, flags=1),
    "openat": _no_set_id(mode=3, flags=2),
}
# For root inside. No file that it makes can be reached with an id of the host's, so a set-id bit gives none. With a
# block, instances of inotify count for the user that made the namespace, who has 128 in all, and each of its ids may
# have some. With one id, what takes others succeeds and does nothing: programs that only want to are content.
_INSIDE_ROOT: Mapping[str, Mapping[str, Rule]] = {
    "block": {
        **dict.fromkeys(_SET_ID_RULES, ALLOW),
        **_rules_for("inotify_init inotify_init1", errno_verdict(errno.EMFILE)),
    },
    "pretended": {
        **dict.fromkeys(_SET_ID_RULES, ALLOW),
        **_rules_for("chown fchown lchown fchownat setgroups capset", errno_verdict(0)),
        **_rules_for("setuid setgid setreuid setregid setresuid setresgid", errno_verdict(0)),
    },
}
Inside = Literal["block", "pretended"]

_ARGUMENTS: Mapping[str, Rule] = {
    "clone": (Refusal(errno.EPERM, (AnyBit(0, _CLONE_NAMESPACES),)),),
    "unshare": (Refusal(errno.EPERM, (AnyBit(0, 0xFFFF_FFFF_FFFF_FFFF & ~_UNSHARE_ALLOWED),)),),
    "socket": (
        # ZeroMQ, and so Jupyter, aborts where getifaddrs() fails by EAFNOSUPPORT, groupadd at EOPNOTSUPP of audit.
        Refusal(errno.EINVAL, (OneOf(0, (_NETLINK,)),)),
        Refusal(errno.EAFNOSUPPORT, (NoneOf(0, _FAMILIES),)),
        Refusal(errno.EPROTONOSUPPORT, (NoneOf(2, _PROTOCOLS),)),
    ),
    "socketpair": (Refusal(errno.EAFNOSUPPORT, (NoneOf(0, _FAMILIES),)),),
    "ioctl": (Refusal(errno.EPERM, (OneOf(1, _TERMINAL_IOCTLS),)),),
    "personality": (Refusal(errno.EPERM, (NoneOf(0, (0, 0xFFFF_FFFF)),)),),  # PER_LINUX, and the query
    "seccomp": (Refusal(errno.EPERM, (AnyBit(1, 8),)),),  # SECCOMP_FILTER_FLAG_NEW_LISTENER
    # If no more signals can be queued, Linux delivers a real-time signal without the sender's pid: PID 1 would take it
    # for a signal from outside. A pidfd may be PID 1's.
    "kill": (Refusal(errno.EPERM, (OneOf(0, (1,)), AnyBit(1, _REAL_TIME))),),
    "pidfd_send_signal": (Refusal(errno.EPERM, (AnyBit(1, _REAL_TIME),)),),
    **_SET_ID_RULES,
    # Opening a file on which an agent has a lease waits for it, up to 45 s: the kernel's opens, and yours.
    "fcntl": (Refusal(errno.EPERM, (OneOf(1, (1024, 1040)),)),),  # F_SETLEASE F_SETDELEG
    # ENOMEM is what a host without free huge pages answers: programs fall back to ordinary ones.
    "mmap": (_NO_HUGE_MAPPING,),
    "memfd_create": (_NO_STRANGE_MEMFD, _NO_HUGE_MEMFD),
    "shmget": (Refusal(errno.ENOMEM, (AnyBit(2, 0o4000),)),),  # SHM_HUGETLB
}

_ALLOWED_BY_STRICT = _rules_for(
    """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range lseek dup dup2 dup3
    pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime inotify_init inotify_init1
    inotify_add_watch inotify_rm_watch splice tee vmsplice sendfile copy_file_range sync_file_range fadvise64 readahead
    stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd chdir
    fchdir statfs fstatfs rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat
    chown fchown lchown fchownat utime utimes futimesat utimensat umask truncate ftruncate fallocate flock fsync
    fdatasync sync syncfs setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    removexattr lremovexattr fremovexattr setxattrat getxattrat listxattrat removexattrat cachestat
    munmap mprotect mremap msync mincore madvise brk mlock mlock2 munlock mlockall munlockall membarrier mseal
    pkey_mprotect pkey_alloc pkey_free get_mempolicy set_mempolicy mbind map_shadow_stack remap_file_pages
    fork vfork execve execveat exit exit_group wait4 waitid tkill tgkill pidfd_open
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait rt_sigqueueinfo
    rt_tgsigqueueinfo sigaltstack pause restart_syscall futex futex_waitv futex_wake futex_wait futex_requeue
    set_robust_list get_robust_list set_tid_address rseq arch_prctl prctl uretprobe uprobe
    getpid gettid getppid getpgid getpgrp setpgid getsid setsid getuid geteuid getgid getegid getresuid getresgid
    getgroups setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset
    getpriority setpriority getrlimit setrlimit prlimit64 getrusage times sysinfo uname getcpu getrandom
    sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler
    sched_setscheduler sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min
    sched_rr_get_interval ioprio_get ioprio_set
    time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    connect accept accept4 bind listen shutdown getsockname getpeername setsockopt getsockopt sendto recvfrom sendmsg
    recvmsg sendmmsg recvmmsg
    shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    landlock_create_ruleset landlock_add_rule landlock_restrict_self
    """,
    ALLOW,
)

# Flags of memfd_create(2) since Linux 6.3; an older kernel returns EINVAL for both.
_MFD_NOEXEC_SEAL, _MFD_EXEC = 0x8, 0x10
_SEALED_MEMFD: Mapping[str, Rule] = {
    "memfd_create": (_NO_STRANGE_MEMFD, Refusal(errno.EACCES, (NoBit(1, _MFD_NOEXEC_SEAL),)), _NO_HUGE_MEMFD)
}
# For vm.memfd_noexec at 2. Linux 6.3 and 6.4 allow MFD_EXEC nevertheless.
_NO_MFD_EXEC: Mapping[str, Rule] = {
    "memfd_create": (_NO_STRANGE_MEMFD, Refusal(errno.EACCES, (AnyBit(1, _MFD_EXEC),)), _NO_HUGE_MEMFD)
}

_UNCOUNTED_MEMORY: Mapping[str, Rule] = {
    **_rules_for("shmget msgget semget memfd_create vmsplice", errno_verdict(errno.ENOSYS)),
    "mmap": (_NO_HUGE_MAPPING, Refusal(errno.EPERM, (AnyBit(3, _MAP_SHARED), AnyBit(3, _MAP_ANONYMOUS)))),
}

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "standard": Profile("standard", {**_DENIED, **_ARGUMENTS}, ALLOW),
        "strict": Profile(
            "strict", {**_DENIED, **_ARGUMENTS, **_ALLOWED_BY_STRICT, **_SEALED_MEMFD}, errno_verdict(errno.ENOSYS)
        ),
    }
)


@cache
def build_filter(
    profile: str, architecture: str, counted: bool = True, memfd_noexec: bool = False, inside: Inside | None = None
) -> tuple[Instruction, ...]:
    """Return the filter of a profile for an architecture, as ``os.uname().machine``; ``KeyError`` for an unknown one.

    ``counted``: a cgroup counts all memory of the program. ``memfd_noexec``: vm.memfd_noexec is 2 in the program's PID
    namespace, so ``strict`` may allow memfds without either flag. ``inside``: for root inside, in an image.
    """
    found = PROFILES[profile]
    if inside is not None:
        found = replace(found, rules={**found.rules, **_INSIDE_ROOT[inside]})
    if profile == "strict" and memfd_noexec:
        found = replace(found, rules={**found.rules, **_NO_MFD_EXEC})
    return compile_filter(
        found if counted else replace(found, rules={**found.rules, **_UNCOUNTED_MEMORY}), architecture
    )


@cache
def filter_bytes(
    profile: str, architecture: str, counted: bool = True, memfd_noexec: bool = False, inside: Inside | None = None
) -> bytes:
    """As :func:`build_filter`, as the bytes for seccomp(2): an array of ``struct sock_filter``."""
    return bpf.pack(build_filter(profile, architecture, counted, memfd_noexec, inside))


@cache
def memfd_refusal(filters: bytes, architecture: str) -> int | None:
    """Return the errno of memfd_create(2) without MFD_NOEXEC_SEAL under this filter; ``None`` if it is allowed."""
    number = NUMBERS[architecture]["memfd_create"]
    verdict = bpf.run(bpf.unpack(filters), bpf.SyscallData(number, ARCHITECTURES[architecture], (0, _MFD_EXEC))).value
    return None if verdict == ALLOW else verdict & 0xFFFF
