"""Build the sandbox plan: turn a policy and the host's features into an ordered tuple of steps. Pure.

The order of the steps matters:

- What is the same for other agents comes first, up to StandBy: a jail can be built so far before its agent is known.
- Sources are opened while the process still has the permissions to open them (with root the zygote does it: a user
  namespace takes those permissions away). Mounts are made from the opened descriptors, so no path is resolved twice.
- With root, the tmpfs of the root is the host's, so directories can be made in it before the identity is taken, and
  not afterwards. The agent's own tmpfs are mounted afterwards: an unmapped uid can't make a directory in them.
- ``vm.memfd_noexec`` is written before the identity is taken: Linux lets only the host's uid 0 write it.
- An overlay is mounted after the identity is taken: the mounter's rights are what it reads and copies with.
- An image becomes the root after all else is mounted, which moves over to it: so a jail built ahead will do.
- Sources are closed before the root is switched: a directory descriptor would lead back out of the sandbox.
- Steps that need a capability (limits, loopback) come before the capabilities are dropped. no_new_privs comes before
  Landlock and seccomp, which need it once the capabilities are gone. seccomp is last, because it denies system calls
  that the other steps use.
"""

import functools
import os.path
import sys
from collections.abc import Iterator, Mapping, Sequence

from agentos_sdk.values import HostIds

from . import steps as s
from .files.root_files import (
    BLOCK,
    CODE,
    DEVICES,
    GID,
    INIT_UID,
    ROOT_HOME,
    SDK,
    SOCKET,
    TERMINALS,
    UID,
    WORKSPACE,
    bind_steps,
    detach_steps,
    git_files,
    image_steps,
    is_in_image,
    is_own,
    open_layer_steps,
    open_steps,
    root_steps,
    script_path,
    tmpfs_steps,
)
from .filters import landlock, seccomp
from .filters.landlock import PathRule
from .host import Host
from .policy import MIB, BadPolicy, Image, Limits, Policy, Program, RootImage
from .steps import Step

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000

FILTERED_ADDRESSES = ("198.18.0.0", 15)  # RFC 2544: for tests of devices, so on no network that a host uses

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EXTRA_PROCESSES = (
    8  # processes: the pids cgroup must refuse a fork before RLIMIT_NPROC does, because it counts refusals
)
# RLIMIT_CORE in bytes. Less than a page, so no core file is written. If core_pattern is a pipe, 0 doesn't prevent the
# dump, but 1 does: Linux uses it to recognise the dumps of its own dump helpers and skips them.
_CORE_LIMIT = 1
_MAX_PENDING_SIGNALS = 256  # pending signals; each takes kernel memory
_ROOT_SIZE, _ROOT_INODES = MIB, 512  # the root tmpfs holds only directories, symlinks and the files of /etc


def plan_sandbox(policy: Policy, program: Program, host: Host, host_ids: HostIds | None = None) -> tuple[Step, ...]:
    """Return the steps for a new sandbox.

    ``host_ids`` is needed if the kernel has root; without root the program has the kernel's uid and gid on the host.
    With root inside they are those of its root: the :data:`.root_files.BLOCK` ids from there on are its own alone.

    :class:`BadPolicy` if the policy can't be a sandbox: root without a uid and gid for the program, an image workspace
    without root, or an interpreter prefix that contains too much of the host.
    """
    ids = _check_host_ids(host, host_ids)
    if policy.inside_root and host.uid == 0:
        _check_counted(host)
    if host.uid != 0 and isinstance(policy.workspace, Image):
        raise BadPolicy("workspace: mounting an image needs root")
    is_root, binds = host.uid == 0, (*bind_steps(policy, host),)
    own = tuple([bind for bind in binds if is_own(bind)])
    within_tmp = tuple([bind for bind in binds if bind.target.startswith("/tmp/")])
    common = tuple([bind for bind in binds if bind not in (*own, *within_tmp)])
    later = (*own, *within_tmp) if policy.image is None else own
    flags = NEWUSER | NEWPID | NEWNS | NEWUTS | NEWIPC | (NEWNET if policy.network != "host" else 0)
    return (
        _clone_step(policy, host, ids)._replace(flags=flags),
        *([s.DetachRoot(_ROOT_SIZE, _ROOT_INODES), *detach_steps(policy, common, ids)] if is_root else []),
        s.PrivateMounts(),
        *(open_steps(policy, binds, common) if not is_root else []),
        s.ForbidNamespaces(),
        *([s.LoopbackUp()] if policy.network != "host" else []),
        *([s.RouteToLoopback(*FILTERED_ADDRESSES)] if policy.network == "filtered" else []),
        s.MountRoot(_ROOT_SIZE, _ROOT_INODES),
        *root_steps(policy, host, common),
        s.StandBy(),
        *(detach_steps(policy, later, ids) if is_root else []),
        *([s.UnshareCgroup()] if host.cgroup_namespace else []),
        *(open_steps(policy, binds, later) if not is_root else []),
        *open_layer_steps(policy, ids if is_root else None),
        *(s.WriteFile(f"/etc/{name}", text) for name, text in git_files(policy).items()),
        *own,
        *([s.ForbidExecutableMemfds()] if policy.profile == "strict" and host.memfd_noexec else []),
        _identity_step(policy, host),
        s.Hostname(policy.hostname),
        *tmpfs_steps(policy, host, within_tmp if policy.image is None else ()),
        *image_steps(policy, host, binds),
        s.CloseSources(),
        s.SwitchRoot(),
        *([s.ReadOnlyRoot()] if policy.image is None else []),
        *([s.Listen(policy.sockets)] if policy.sockets else []),
        *_confine_steps(policy, host, binds),
        plan_program(policy, program, host),
    )


def split_plan(plan: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...]] | None:
    """Split a plan into the steps that a jail built ahead has done, and the others; ``None`` if it can't be split.

    Of a plan without namespaces of its own nothing is done ahead but the clone of the process.

    With root the uid and gid maps are written last, and no source is id-mapped before: the uid isn't known ahead.
    """
    clone = plan[0]
    if isinstance(clone, s.Join) or (isinstance(clone, s.Clone) and not clone.flags):
        return (), tuple(plan)
    place = next((number for number, step in enumerate(plan, 1) if isinstance(step, s.StandBy)), None)
    if place is None or not isinstance(clone, s.Clone):
        return None
    ahead, rest = tuple(plan[1:place]), tuple(plan[place:])
    if clone.deny_setgroups or clone.writers is not None:
        return (clone, *ahead), rest
    unmapped = s.Clone(clone.flags, "", "", clone.deny_setgroups)
    unowned = [_forget_owner(step) if type(step) is s.DetachSource else step for step in ahead]
    return (unmapped, *unowned), (clone, *rest)


def _forget_owner(step: s.DetachSource) -> s.DetachSource:
    return step._replace(owner=s.UNKNOWN_OWNER) if step.owner is not None else step


def plan_entry(policy: Policy, program: Program, host: Host) -> tuple[Step, ...]:
    """Return the steps for a further program in a sandbox started by :func:`plan_sandbox` of the same policy."""
    return (*plan_way_in(policy, host), plan_program(policy, program, host))


def plan_way_in(policy: Policy, host: Host) -> tuple[Step, ...]:
    """Return the steps of :func:`plan_entry` that are the same for each program; :func:`plan_program` is the last."""
    return (
        s.Join(),
        _identity_step(policy, host)._replace(init=None),  # its PID 1 starts the program without a fork
        s.Descend(NEWPID | NEWNS, "/proc", policy.inside_root),
        *_confine_steps(policy, host, (*bind_steps(policy, host),)),
    )


def plan_root_inside(policy: Policy, host: Host, ids: HostIds) -> tuple[s.Clone, s.TakeIdentity]:
    """The steps of a plan that give its program its ids, for a trial."""
    return _clone_step(policy, host, ids), _identity_step(policy, host)


def _clone_step(policy: Policy, host: Host, ids: HostIds) -> s.Clone:
    flags, is_root = NEWUSER | NEWPID, host.uid == 0
    if (inside := find_inside(policy, host)) is None:
        return s.Clone(flags, f"{UID} {ids.uid} 1", f"{GID} {ids.gid} 1", not is_root)
    count = BLOCK if is_root else 1
    uids, gids = f"0 {ids.uid} {count}", f"0 {ids.gid} {count}"
    if inside == "pretended" or host.sub_ids is None:
        return s.Clone(flags, uids, gids, not is_root)
    sub, others = host.sub_ids, BLOCK - 1
    writers = (sub.newuidmap, sub.newgidmap)
    return s.Clone(flags, f"{uids}\n1 {sub.uid} {others}", f"{gids}\n1 {sub.gid} {others}", False, writers)


def _identity_step(policy: Policy, host: Host) -> s.TakeIdentity:
    uid, gid = (0, 0) if policy.inside_root else (UID, GID)
    has_block = find_inside(policy, host) == "block"
    return s.TakeIdentity(uid, gid, host.uid == 0 or has_block, INIT_UID if has_block else None)


def _confine_steps(policy: Policy, host: Host, binds: tuple[s.Bind, ...]) -> Iterator[Step]:
    """Yield the steps before the program's, common to new sandboxes and further programs."""
    yield s.SetLimits(_rlimits(policy, host))
    yield s.DropCapabilities(s.INSIDE_ROOT if policy.inside_root else 0)
    yield s.NoNewPrivileges()
    yield from _landlock_step(policy, host, binds)
    inside = find_inside(policy, host)
    filters = seccomp.filter_bytes(policy.profile, host.architecture, host.memory_cgroup, host.memfd_noexec, inside)
    yield s.Seccomp(filters.hex())


def plan_program(policy: Policy, program: Program, host: Host) -> s.Execute | s.RunScript:
    """Return the last step of a program in a sandbox with this policy."""
    argv, environment = tuple(program.argv), _build_environment(policy, program)
    if not program.fast:
        first = s.Execute(argv, environment, program.directory, stdin=program.stdin, terminal=program.terminal)
        return first._replace(two_way=program.two_way)
    interpreter = policy.interpreter
    if policy.image is not None:
        raise BadPolicy("fast: the kernel's interpreter isn't in the image: say exec")
    if interpreter is None or interpreter != host.interpreter:
        raise BadPolicy(f"fast: the interpreter is the kernel's, {host.interpreter}, and not {interpreter}")
    if policy.code is None and (policy.script is None or argv[0] != script_path(policy.script)):
        raise BadPolicy(f"fast: {argv[0]} is not the script")
    if os.path.normpath(argv[0]) != argv[0] or not argv[0].startswith(f"{CODE}/"):
        raise BadPolicy(f"fast: {argv[0]} is not in {CODE}")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = (
        (f"{interpreter.prefix}/lib/{version}/site-packages",) if interpreter.prefix != interpreter.base_prefix else ()
    )
    return s.RunScript(argv, environment, program.directory, (SDK,) if policy.sdk is not None else (), packages)


def plan_unjailed(program: Program, host: Host, limits: Limits | None, keeper: bool = False) -> tuple[Step, ...]:
    """Return the steps for isolation ``none``: the kernel's uid, the host's files and network.

    Only resource limits are set, if there are any. Limits that count all processes of the uid are left out.
    With ``keeper``, all processes that the program starts end with it, or at the latest when it is killed.
    """
    own = {"NOFILE": limits.open_files, "FSIZE": limits.file_size} if limits is not None else {}
    wanted = {**own, "CORE": 0}
    environment = tuple(program.environment.items())
    return (
        s.Clone(0, "", "", deny_setgroups=False),
        s.SetLimits(_cap_rlimits(wanted, host)),
        s.Execute(
            *(tuple(program.argv), environment, program.directory, not keeper, program.stdin, keeper, program.terminal)
        ),
    )


def find_inside(policy: Policy, host: Host) -> seccomp.Inside | None:
    """Whether root inside has a block of ids, or one, and others are pretended.

    Without root a block is taken of the user's own subordinate ids. Files with them could not be removed by the kernel:
    an upper layer that stays has none.
    """
    if not policy.inside_root or policy.image is None:
        return None
    counted = host.memory_cgroup and host.pids_cgroup and policy.workspace is None and not policy.builds
    return "block" if host.uid == 0 or (host.sub_ids is not None and counted) else "pretended"


def _check_counted(host: Host) -> None:
    lacks = [name for name, has in (("memory", host.memory_cgroup), ("processes", host.pids_cgroup)) if not has]
    if lacks:  # rlimits count for each of its 65,536 ids
        raise BadPolicy(f"user root: no control group counts its {' and '.join(lacks)}: `agentos doctor` says why")


def _check_host_ids(host: Host, host_ids: HostIds | None) -> HostIds:
    if host.uid != 0:
        if host_ids not in (None, HostIds(host.uid, host.gid)):
            raise BadPolicy("without root a program has the kernel's own uid on the host; another uid can't be set")
        return HostIds(host.uid, host.gid)
    if host_ids is None or 0 in (host_ids.uid, host_ids.gid):
        raise BadPolicy("with root a program needs a uid and gid of its own on the host, not root's")
    return host_ids


def _rlimits(policy: Policy, host: Host) -> tuple[tuple[str, int], ...]:
    limits = policy.limits
    wanted = {
        "NOFILE": limits.open_files,
        "FSIZE": limits.file_size,
        "NPROC": limits.max_pids + 1 + (_EXTRA_PROCESSES if host.pids_cgroup else 0),  # the shim is one process
        "CORE": _CORE_LIMIT,
        "RTPRIO": 0,
        "NICE": 0,
        "MEMLOCK": 64 << 10,
        "MSGQUEUE": 800 << 10,
        "SIGPENDING": _MAX_PENDING_SIGNALS,
        **({} if host.memory_cgroup else {"DATA": limits.data}),
    }
    return _cap_rlimits(wanted, host)


def _cap_rlimits(wanted: Mapping[str, int], host: Host) -> tuple[tuple[str, int], ...]:
    """Cap the limits at the host's hard limits: raising a hard limit needs a capability that no sandbox has."""
    return tuple([(name, min(value, host.hard_limits.get(name, value))) for name, value in wanted.items()])


def _landlock_step(policy: Policy, host: Host, binds: tuple[s.Bind, ...]) -> Iterator[Step]:
    if host.landlock_abi == 0:
        return
    executable: tuple[str, ...] = ("/",)
    image = policy.image or RootImage("/")
    if policy.profile == "strict":  # no path is both writable and executable
        shown = [bind for bind in binds if policy.image is None or is_in_image(bind)]
        executable = tuple([bind.target for bind in shown if not (bind.device or bind.writable)])
        executable += tuple([f"/{name}" for name in (*image.directories, *image.files)])
    written: tuple[str, ...] = ("/tmp", WORKSPACE, "/dev/shm")
    if policy.inside_root:  # where no cgroup counts its memory there is no /dev/zero
        written = ("/",)
    elif policy.profile != "strict":
        written += tuple([f"/{name}" for name in image.directories])
    if policy.builds:
        written = ("/", WORKSPACE, "/dev/shm")
    # A shared mapping of /dev/zero is memory that no watcher finds; it needs a descriptor that is open for writing.
    devices = ("/dev",) if host.memory_cgroup else tuple([f"/dev/{name}" for name in DEVICES if name != "zero"])
    terminals = (TERMINALS,) if policy.terminals else ()
    yield _build_landlock_step(host.landlock_abi, executable, written, devices, terminals)


@functools.lru_cache(maxsize=64)  # of one host nearly all are equal
def _build_landlock_step(
    abi: int,
    executable: tuple[str, ...],
    written: tuple[str, ...],
    devices: tuple[str, ...],
    terminals: tuple[str, ...],
) -> s.Landlock:
    scope = landlock.Scope.ABSTRACT_UNIX_SOCKET | landlock.Scope.SIGNAL
    asked = landlock.HandledRights(landlock.ALL_FILES & ~landlock.FileRights.RESOLVE_UNIX, scope=scope)
    rules = landlock.build_ruleset(
        abi,
        asked,
        [
            PathRule("/", landlock.READ),
            *(PathRule(path, landlock.EXECUTE) for path in executable),
            *(PathRule(path, landlock.WRITE) for path in written),
            *(PathRule(path, landlock.FileRights.WRITE_FILE | landlock.FileRights.TRUNCATE) for path in devices),
            *(PathRule(path, landlock.FileRights.WRITE_FILE | landlock.FileRights.IOCTL_DEV) for path in terminals),
        ],
    )
    allowed = tuple([(rule.path, int(rule.effective(rules.walls))) for rule in rules.paths])
    return s.Landlock(rules.pack().hex(), allowed)


def _build_environment(policy: Policy, program: Program) -> tuple[tuple[str, str], ...]:
    """Return the program's environment: defaults, then the program's own variables. Nothing comes from the kernel."""
    environment = {
        "PATH": DEFAULT_PATH,
        "HOME": WORKSPACE,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "agent",
        "LOGNAME": "agent",
    }
    if policy.inside_root:
        environment |= {"PATH": ROOT_PATH, "HOME": ROOT_HOME}
    if policy.image is not None:
        user = "root" if policy.inside_root else policy.image.user or "agent"
        environment |= {"USER": user, "LOGNAME": user, "PYTHONDONTWRITEBYTECODE": "1", **dict(policy.image.environment)}
    elif policy.interpreter is not None:
        environment["PATH"] = f"{os.path.dirname(policy.interpreter.executable)}:{environment['PATH']}"
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if policy.sdk is not None:
        environment["PYTHONPATH"] = SDK
    if policy.socket is not None:
        environment["AGENTOS_SOCKET"] = SOCKET
    return tuple({**environment, **program.environment}.items())
