"""From what a program may see and what the host has to the steps that make the sandbox, in their order. Pure.

The order matters, and each neighbour has its reason:

- Sources are opened first, while we are still who may open them (with root by the zygote: a user namespace takes that
  away); mounts are made from what was opened, so that nothing is named twice. The identity comes between: who isn't
  mapped can't make a directory (EOVERFLOW), and who has changed can't reach a home of mode 0700 any more.
- ``vm.memfd_noexec`` is written before the identity is taken: Linux lets only the host's uid 0 write it.
- Sources are closed before the root is switched: a directory's descriptor would lead back out.
- What needs a capability (limits, loopback) comes before the capabilities go; no_new_privs before Landlock and seccomp,
  which without capabilities need it; seccomp last, because it refuses what the others use.
"""

import os.path
import sys
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from . import landlock, seccomp
from . import steps as s
from .landlock import PathRule
from .policy import MIB, BadPolicy, Directory, Image, Interpreter, Limits, Policy, Program
from .steps import Step

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000

AHEAD = NEWUSER | NEWPID | NEWUTS | NEWIPC | NEWNET  # what a process can be born in before its policy is known,
READY = (s.ForbidNamespaces, s.LoopbackUp)  # and what it can do by then

UID = GID = 1000  # inside
CODE, WORKSPACE, SDK, SOCKET = "/agent", "/workspace", "/sdk", "/run/agentos.sock"
DEVICES = ("null", "zero", "full", "random", "urandom")
_OUR_ETC = {
    "passwd": f"agent:x:{UID}:{GID}:agent:{WORKSPACE}:/bin/sh\n",
    "group": f"agent:x:{GID}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_SPARE = 8  # processes: a cgroup is to refuse before the resource limit does, since it counts what it refused
# Bytes; less than a page, so no file is written. And where core_pattern is a pipe, 0 holds nothing back, but 1 is what
# Linux knows the dumps of its own dump helpers by: it writes none.
_NO_CORE = 1
_PENDING = 256  # signals that wait; each takes memory of the kernel's
_ROOT_SIZE, _ROOT_INODES = MIB, 512  # the root itself holds directories, links and the files of /etc


@frozen
class Host:
    """What the plan must know of the host. ``directories`` and ``links`` are what it has of the system's."""

    uid: int  # the kernel's
    gid: int
    architecture: str  # as os.uname() names it
    directories: frozenset[str] = frozenset()  # and single files
    links: Mapping[str, str] = field(factory=dict)
    landlock_abi: int = 0
    cgroup_namespace: bool = True
    memory_cgroup: bool = False  # otherwise somebody watches, and each process has a limit of its own
    pids_cgroup: bool = False
    memfd_noexec: bool = False  # vm.memfd_noexec can be written for a new PID namespace
    hard_limits: Mapping[str, int] = field(factory=dict)
    interpreter: Interpreter | None = None  # the kernel's own


SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
NETWORK_FILES = ("/etc/resolv.conf", "/etc/ssl", "/etc/pki", "/etc/ca-certificates")

TOO_MUCH = frozenset(
    {
        "/",
        "/dev",
        "/etc",
        "/home",
        "/mnt",
        "/proc",
        "/root",
        "/run",
        "/srv",
        "/sys",
        "/tmp",
        "/var",
        CODE,
        WORKSPACE,
        SDK,
    }
)


@frozen
class Outer:
    """Who the program is on the host. Not the superuser, and with root not the kernel's user either."""

    uid: int
    gid: int


def plan(policy: Policy, program: Program, host: Host, outer: Outer | None = None) -> tuple[Step, ...]:
    """The steps. ``outer`` is for a kernel with root; without, the program is the kernel's user outside.

    :class:`BadPolicy` for what can't be a sandbox: root without an identity of the program's own, or a tree of the
    host's that has everything in it.
    """
    who = _outer(host, outer)
    if host.uid != 0 and isinstance(policy.workspace, Image):
        raise BadPolicy("without root no image can be mounted")
    binds = tuple(_binds(policy, host))
    return (
        birth(who, is_root=host.uid == 0, flags=AHEAD & ~NEWNET if policy.network else AHEAD),
        *(_detached(policy, binds, who) if host.uid == 0 else []),
        *([s.UnshareCgroup()] if host.cgroup_namespace else []),
        s.PrivateMounts(),
        *(_opened(policy, binds) if host.uid != 0 else []),
        *([s.ForbidExecutableMemfds()] if policy.profile == "strict" and host.memfd_noexec else []),
        s.TakeIdentity(UID, GID, drop_groups=host.uid == 0),
        s.ForbidNamespaces(),
        s.Hostname(policy.hostname),
        s.MountRoot(_ROOT_SIZE, _ROOT_INODES),
        *_root(policy, host, binds),
        s.CloseSources(),
        s.SwitchRoot(),
        s.ReadOnlyRoot(),
        *([] if policy.network else [s.LoopbackUp()]),
        *([s.Listen(policy.port)] if policy.port is not None else []),
        *_confined(policy, program, host, binds),
    )


def birth(who: Outer, is_root: bool, flags: int = AHEAD) -> s.Clone:
    """The first step of who is this on the host; ``is_root`` is whether the kernel is."""
    return s.Clone(flags, f"{UID} {who.uid} 1", f"{GID} {who.gid} 1", deny_setgroups=not is_root)


def enter(policy: Policy, program: Program, host: Host) -> tuple[Step, ...]:
    """The steps for one more program, beside one that was started by a :func:`plan` of the same policy."""
    return (
        s.Join(),
        s.TakeIdentity(UID, GID, drop_groups=host.uid == 0),
        s.Descend(0),
        s.Descend(NEWPID | NEWNS),
        s.OwnProc("/proc"),
        *_confined(policy, program, host, tuple(_binds(policy, host))),
    )


def _confined(policy: Policy, program: Program, host: Host, binds: tuple[s.Bind, ...]) -> Iterator[Step]:
    """The last steps of whoever is to run in there."""
    yield s.SetLimits(_limits(policy, host))
    yield s.DropCapabilities()
    yield s.NoNewPrivileges()
    yield from _landlock(policy, host, binds)
    filters = seccomp.program(policy.profile, host.architecture, host.memory_cgroup, host.memfd_noexec)
    yield s.Seccomp(filters.hex())
    yield _program(policy, program, host)


def _program(policy: Policy, program: Program, host: Host) -> s.Execute | s.RunScript:
    argv, environment = tuple(program.argv), _environment(policy, program)
    if not program.fast:
        return s.Execute(argv, environment, program.directory, stdin=program.stdin)
    where = policy.interpreter
    if where is None or where != host.interpreter:
        raise BadPolicy(f"fast: the interpreter is the kernel's, {host.interpreter}, and not {where}")
    if policy.code is None and (policy.script is None or argv[0] != _script_at(policy.script)):
        raise BadPolicy(f"fast: {argv[0]} is not the script")
    if os.path.normpath(argv[0]) != argv[0] or not argv[0].startswith(f"{CODE}/"):
        raise BadPolicy(f"fast: {argv[0]} is not in {CODE}")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = (f"{where.prefix}/lib/{version}/site-packages",) if where.prefix != where.base_prefix else ()
    return s.RunScript(argv, environment, program.directory, (SDK,) if policy.sdk is not None else (), packages)


def bare(program: Program, host: Host, limits: Limits | None, kept: bool = False) -> tuple[Step, ...]:
    """The steps where no wall is wanted: the kernel's own user, with the host's files and network.

    Resource limits of its own are all that it gets, if any; of these none that counts what others of this user have.
    With ``kept`` all that it starts ends with it, or at the latest when it is killed.
    """
    own = {"NOFILE": limits.open_files, "FSIZE": limits.file_size} if limits is not None else {}
    wanted = {**own, "CORE": 0}
    environment = tuple(program.environment.items())
    return (
        s.Clone(0, "", "", deny_setgroups=False),
        s.SetLimits(_attainable(wanted, host)),
        s.Execute(tuple(program.argv), environment, program.directory, not kept, program.stdin, kept),
    )


def _outer(host: Host, outer: Outer | None) -> Outer:
    if host.uid != 0:
        if outer not in (None, Outer(host.uid, host.gid)):
            raise BadPolicy("without root a program can only be the kernel's own user outside")
        return Outer(host.uid, host.gid)
    if outer is None or 0 in (outer.uid, outer.gid):
        raise BadPolicy("with root a program needs a user and a group of its own outside, and never root's")
    return outer


def _opened(policy: Policy, binds: Sequence[s.Bind]) -> Iterator[Step]:
    followed = dict.fromkeys((bind.source for bind in binds), True)
    followed |= {bind.source: False for bind in binds if bind.target in _unfollowed(policy)}
    return (s.OpenSource(path, follow) for path, follow in followed.items())


def _detached(policy: Policy, binds: Sequence[s.Bind], who: Outer) -> Iterator[Step]:
    for bind in binds:
        if bind.writable and isinstance(policy.workspace, Image):
            yield s.DetachImage(bind.source, bind.target)
            continue
        ours = bind.device or bind.source in (*SYSTEM, *SYSTEM_FILES, *NETWORK_FILES, policy.socket)
        follow = bind.target not in _unfollowed(policy)
        always = bind.target in (CODE, WORKSPACE)
        owner = None if ours else (who.uid, who.gid)
        yield s.DetachSource(bind.source, bind.target, follow, owner, always, bind.writable)


def _unfollowed(policy: Policy) -> Sequence[str]:
    """What may come from an agent, in directories that it or another one can write to."""
    return (CODE, WORKSPACE, *([_script_at(policy.script)] if policy.script is not None else ()))


def _script_at(script: str) -> str:
    return f"{CODE}/{os.path.basename(script)}"


def _binds(policy: Policy, host: Host) -> Iterator[s.Bind]:
    """What of the host is inside; outer directories before what lies in them."""
    wanted = [*SYSTEM, *SYSTEM_FILES, *(NETWORK_FILES if policy.network else ())]
    trees = [path for path in wanted if path in host.directories]
    if policy.interpreter is not None:
        trees += [policy.interpreter.prefix, policy.interpreter.base_prefix]
    shown: list[str] = []
    for path in sorted(trees, key=lambda path: path.count("/")):
        if any(path.startswith(own + "/") for own in ("/dev", "/proc", "/sys", CODE, WORKSPACE, SDK)):
            raise BadPolicy(f"the interpreter's prefix is {path}, where a sandbox has something of its own")
        if path in TOO_MUCH:
            raise BadPolicy(f"the interpreter's prefix is {path}, which has more in it than an interpreter")
        if not any(path == former or path.startswith(former + "/") for former in shown):
            shown.append(path)
            yield s.Bind(path, path)
    for name in DEVICES:
        yield s.Bind(f"/dev/{name}", f"/dev/{name}", device=True)
    if policy.sdk is not None:
        yield s.Bind(policy.sdk, f"{SDK}/agentos_sdk")
        yield s.Bind(f"{policy.sdk}/in_sandbox/agentos.py", f"{SDK}/agentos.py")
    if policy.script is not None:
        yield s.Bind(policy.script, _script_at(policy.script))
    if policy.code is not None:
        yield s.Bind(policy.code, CODE)
    if policy.workspace is not None:
        yield s.Bind(policy.workspace.path, WORKSPACE, writable=True, executable=policy.profile != "strict")
    if policy.socket is not None:
        yield s.Bind(policy.socket, SOCKET)


def _root(policy: Policy, host: Host, binds: tuple[s.Bind, ...]) -> Iterator[Step]:
    """Fill the new root. What is mounted over a directory comes before what is mounted in it."""
    limits, counted = policy.limits, not host.memory_cgroup
    for directory in ("/dev", "/etc", "/proc", "/run", "/tmp", CODE, WORKSPACE):
        yield s.MakeDirectory(directory)
    for path, target in sorted(host.links.items()):
        yield s.Link(path, target)
    for name, text in {**_OUR_ETC, **_for_git(policy)}.items():
        yield s.WriteFile(f"/etc/{name}", text)
    executable = policy.profile != "strict"
    yield s.MountTmpfs("/tmp", limits.tmp, limits.inodes, executable, counted)
    if policy.workspace is None:
        yield s.MountTmpfs(WORKSPACE, limits.disk, limits.inodes, executable, counted)
    yield from binds
    if isinstance(policy.workspace, Directory) and policy.workspace.protected:
        yield s.Protect(WORKSPACE, policy.workspace.protected)
    yield s.MakeDirectory("/dev/shm")
    yield s.MountTmpfs("/dev/shm", limits.tmp, limits.inodes, False, counted)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        yield s.Link(f"/dev/{name}", f"/proc/self/fd{target}")
    yield s.MountProc("/proc")
    if policy.socket is not None:
        yield s.Link("/tmp/agentos.sock", SOCKET)


def _for_git(policy: Policy) -> Mapping[str, str]:
    """Files of /etc by which git leaves out what is protected: nobody wants to commit what only keeps a name taken."""
    if not isinstance(policy.workspace, Directory) or not policy.workspace.protected:
        return {}
    ignored = "".join(f"/{name}\n" for name in policy.workspace.protected if not name.startswith(".git/"))
    return {"gitconfig": "[core]\n\texcludesFile = /etc/gitignore\n", "gitignore": ignored}


def _limits(policy: Policy, host: Host) -> tuple[tuple[str, int], ...]:
    limits = policy.limits
    wanted = {
        "NOFILE": limits.open_files,
        "FSIZE": limits.file_size,
        "NPROC": limits.max_pids + 1 + (_SPARE if host.pids_cgroup else 0),  # the shim is one
        "CORE": _NO_CORE,
        "RTPRIO": 0,
        "NICE": 0,
        "MEMLOCK": 64 << 10,
        "MSGQUEUE": 800 << 10,
        "SIGPENDING": _PENDING,
        **({} if host.memory_cgroup else {"DATA": limits.data}),
    }
    return _attainable(wanted, host)


def _attainable(wanted: Mapping[str, int], host: Host) -> tuple[tuple[str, int], ...]:
    """Never more than the host's own: raising a hard limit takes a capability that no sandbox has."""
    return tuple((name, min(value, host.hard_limits.get(name, value))) for name, value in wanted.items())


def _landlock(policy: Policy, host: Host, binds: tuple[s.Bind, ...]) -> Iterator[Step]:
    if host.landlock_abi == 0:
        return
    scope = landlock.Scope.ABSTRACT_UNIX_SOCKET | landlock.Scope.SIGNAL
    asked = landlock.Walls(landlock.ALL_FILES & ~landlock.Files.RESOLVE_UNIX, scope=scope)
    read, write, execute = landlock.READ, landlock.WRITE, landlock.EXECUTE
    if policy.profile == "strict":  # what can be written can't be executed
        run = [PathRule(bind.target, execute) for bind in binds if not (bind.device or bind.writable)]
    else:
        run = [PathRule("/", execute)]
    rules = landlock.ruleset(
        host.landlock_abi,
        asked,
        [
            PathRule("/", read),
            *run,
            *(PathRule(path, write) for path in ("/tmp", WORKSPACE, "/dev/shm")),
            PathRule("/dev", landlock.Files.WRITE_FILE | landlock.Files.TRUNCATE),
        ],
    )
    yield s.Landlock(
        rules.pack().hex(), tuple((rule.path, int(rule.effective(rules.walls))) for rule in rules.paths), ()
    )


def _environment(policy: Policy, program: Program) -> tuple[tuple[str, str], ...]:
    """Nothing of ours: what a program needs to find its way, then what it was given."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": WORKSPACE,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "agent",
        "LOGNAME": "agent",
    }
    if policy.interpreter is not None:
        environment["PATH"] = f"{os.path.dirname(policy.interpreter.executable)}:{environment['PATH']}"
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if policy.sdk is not None:
        environment["PYTHONPATH"] = SDK
    if policy.socket is not None:
        environment["AGENTOS_SOCKET"] = SOCKET
    return tuple({**environment, **program.environment}.items())
