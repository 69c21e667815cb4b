"""The files of a sandbox's root: which host paths are bound where, and which files and tmpfs are its own."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence

from agentos.sandbox import steps as s
from agentos.sandbox.host import Host
from agentos.sandbox.host_ids import STORE_IDS
from agentos.sandbox.policy import MAX_TERMINALS, BadPolicy, Directory, Image, Network, Overlay, Policy
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds

UID = GID = 1000  # inside
BLOCK = STORE_IDS[1]  # ids with root inside; the last one is PID 1's
INIT_UID, ROOT_HOME = 65536, "/root"
APT_AS_ROOT = 'APT::Sandbox::User "root";\n'  # with one id: it looks whether it became another user
CODE, WORKSPACE, SDK, SOCKET = "/agent", "/workspace", "/sdk", "/run/agentos.sock"
TERMINALS = "/dev/pts"
DEVICES = ("null", "zero", "full", "random", "urandom")
_ETC_FILES = {
    "passwd": f"agent:x:{UID}:{GID}:agent:{WORKSPACE}:/bin/sh\n",
    "group": f"agent:x:{GID}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
FILTERED_RESOLVER = "nameserver 127.0.0.1\n"

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
RUNTIME_FILES = re.compile(r"/etc/(java(-[\w.-]+)?|fonts|perl|python3(\.\d+)?|mime\.types|magic(\.mime)?)")
"""What distributions keep of a language's runtime in /etc: settings without which it doesn't start."""
CERTIFICATES = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/crypto-policies")  # and settings of TLS
NETWORK_FILES: Mapping[Network, Sequence[str]] = {
    "none": (),
    "filtered": CERTIFICATES,
    "host": ("/etc/resolv.conf", *CERTIFICATES),
}

FORBIDDEN_PREFIXES = frozenset(
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


def list_runtime_files(etc: str = "/etc") -> list[str]:
    """The host's :data:`RUNTIME_FILES` that root alone may write and everyone may read."""
    return [f"/etc/{name}" for name in sorted(os.listdir(etc)) if _is_public(os.path.join(etc, name), f"/etc/{name}")]


def _is_public(path: str, shown: str) -> bool:
    if not RUNTIME_FILES.fullmatch(shown):
        return False
    found = os.lstat(path)
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else stat.S_IROTH
    kept = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return kept and found.st_uid == 0 and found.st_mode & (needed | stat.S_IWGRP | stat.S_IWOTH) == needed


def find_public_parts(path: str) -> Sequence[str]:
    """The parts of a tree that every user of the host may read: the path itself if that is all of it, also symlinks.

    Without root a jail has the kernel's groups: one that reads keys, such as ``ssl-cert``, must not show them there.
    """
    try:
        mode = os.lstat(path).st_mode
        entries = [f"{path}/{name}" for name in sorted(os.listdir(path))] if stat.S_ISDIR(mode) else []
    except OSError:  # closed even to the kernel, or gone
        return ()
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    if mode & needed != needed:
        return ()
    parts = [part for entry in entries for part in find_public_parts(entry)]
    return [path] if parts == entries else parts


def _is_shown(path: str, network: Network) -> bool:
    """Whether a path of the host's is in every jail with this network."""
    top = "/".join(path.split("/")[:3])
    return (
        path in (*SYSTEM_PATHS, *SYSTEM_FILES)
        or top in NETWORK_FILES[network]
        or (RUNTIME_FILES.fullmatch(top) is not None)
    )


def bind_steps(policy: Policy, host: Host) -> Iterator[s.Bind]:
    """Yield the host paths to mount inside; an outer directory comes before a path within it."""
    trees = [path for path in sorted(host.directories) if _is_shown(path, policy.network)]
    if policy.interpreter is not None:
        trees += [policy.interpreter.prefix, policy.interpreter.base_prefix]
    bound: list[str] = []
    for path in sorted(trees, key=lambda path: path.count("/")):
        if any(path.startswith(own + "/") for own in ("/dev", "/proc", "/sys", CODE, WORKSPACE, SDK)):
            raise BadPolicy(f"the interpreter's prefix is {path}, which a sandbox uses for its own files")
        if path in FORBIDDEN_PREFIXES:
            raise BadPolicy(f"the interpreter's prefix is {path}, which contains more than an interpreter")
        if not any(path == former or path.startswith(former + "/") for former in bound):
            bound.append(path)
            yield s.Bind(path, path)
    for name in DEVICES:
        opened = host.landlock_abi == 0 or policy.inside_root or policy.builds
        if name == "zero" and not host.memory_cgroup and opened:
            continue  # mapped shared it is memory that no watcher finds; only Landlock can make it read-only
        yield s.Bind(f"/dev/{name}", f"/dev/{name}", device=True)
    if policy.sdk is not None:
        yield s.Bind(policy.sdk, f"{SDK}/agentos_sdk")
        for name in ("agentos.py", "agentic.py"):
            yield s.Bind(f"{policy.sdk}/in_sandbox/{name}", f"{SDK}/{name}")
    if policy.script is not None:
        yield s.Bind(policy.script, script_path(policy.script))
    if policy.code is not None:
        yield s.Bind(policy.code, CODE)
    if policy.workspace is not None and not isinstance(policy.workspace, Overlay):
        yield s.Bind(policy.workspace.path, WORKSPACE, writable=True, executable=policy.profile != "strict")
    if policy.socket is not None:
        yield s.Bind(policy.socket, SOCKET)


def is_own(bind: s.Bind) -> bool:
    """Whether this is the agent's own and not the same for all."""
    return bind.target in (CODE, WORKSPACE, SOCKET) or bind.target.startswith(f"{CODE}/")


def script_path(script: str) -> str:
    return f"{CODE}/{os.path.basename(script)}"


def open_steps(policy: Policy, binds: Sequence[s.Bind], wanted: Sequence[s.Bind]) -> Iterator[Step]:
    """Open the sources of the wanted binds."""
    not_followed = {bind.source for bind in binds if bind.target in _targets_without_symlinks(policy)}
    return (s.OpenSource(path, path not in not_followed) for path in dict.fromkeys(bind.source for bind in wanted))


def detach_steps(policy: Policy, binds: Sequence[s.Bind], host_ids: HostIds) -> Iterator[Step]:
    for bind in binds:
        ids, block = (host_ids.uid, host_ids.gid), STORE_IDS if policy.inside_root else None
        if bind.writable and isinstance(policy.workspace, Image):
            yield s.DetachImage(bind.source, bind.target, ids, block)
            continue
        if bind.writable and policy.inside_root:
            yield s.DetachLayer(bind.source, bind.target, ids, writable=True, block=block)
            continue
        ours = bind.device or bind.source == policy.socket or _is_shown(bind.source, "host")
        follow = bind.target not in _targets_without_symlinks(policy)
        always = bind.target in (CODE, WORKSPACE)
        owner = None if ours else ids
        yield s.DetachSource(bind.source, bind.target, follow, owner, always, bind.writable)


def open_layer_steps(policy: Policy, host_ids: HostIds | None) -> Iterator[Step]:
    """Open the layers of overlays; ``host_ids`` are given with root, and are those of the files' owner inside."""
    image, block = policy.image, STORE_IDS if policy.inside_root else None
    if image is not None and host_ids is None:
        yield from (s.OpenSource(path, follow=False) for path in (image.path, image.upper) if path)
    elif image is not None and host_ids is not None:
        owner = host_ids.uid, host_ids.gid
        yield s.DetachLayer(image.path, s.IMAGE, owner, writable=False)
        if image.owned and policy.inside_root:
            yield s.DetachLayer(image.owned, s.IMAGE_OWNED, owner, writable=False, block=block)
        if image.upper:
            yield s.DetachLayer(image.upper, s.IMAGE_UPPER, owner, writable=True, block=block)
    if not isinstance(policy.workspace, Overlay):
        return
    lowers, upper = (*policy.workspace.sealed, policy.workspace.path), policy.workspace.upper
    if host_ids is None:
        yield from (s.OpenSource(path, follow=False) for path in (*lowers, upper))
        return
    owner, targets = (host_ids.uid, host_ids.gid), s.layer_targets(WORKSPACE, len(lowers))
    for path, target in zip((*lowers, upper), targets, strict=True):
        yield s.DetachLayer(path, target, owner, writable=path == upper, block=block)


def _targets_without_symlinks(policy: Policy) -> Sequence[str]:
    """Return the targets with sources that an agent may have made: symlinks in their paths are refused."""
    return (CODE, WORKSPACE, *([script_path(policy.script)] if policy.script is not None else ()))


def root_steps(policy: Policy, host: Host, binds: tuple[s.Bind, ...]) -> Iterator[Step]:
    """Fill the new root with what is the same for all agents of this kernel."""
    for directory in ("/dev", "/etc", "/proc", "/run", "/tmp", CODE, WORKSPACE):
        yield s.MakeDirectory(directory)
    for path, target in sorted(host.links.items()):
        if _is_shown(path, policy.network):
            yield s.Link(path, target)
    for name, text in _ETC_FILES.items():
        yield s.WriteFile(f"/etc/{name}", text)
    if policy.network == "filtered":
        yield s.WriteFile("/etc/resolv.conf", FILTERED_RESOLVER)
    yield from binds
    for directory in ("/dev/shm", TERMINALS):
        yield s.MakeDirectory(directory)
    yield s.Link("/dev/ptmx", "pts/ptmx")  # leads nowhere in a jail without terminals
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        yield s.Link(f"/dev/{name}", f"/proc/self/fd{target}")
    yield s.MountProc("/proc")


def tmpfs_steps(policy: Policy, host: Host, within_tmp: tuple[s.Bind, ...]) -> Iterator[Step]:
    """Mount the agent's own tmpfs. A mount over a directory comes before mounts within that directory."""
    limits, counted = policy.limits, not host.memory_cgroup
    executable = policy.profile != "strict"
    if not policy.builds:  # what is built keeps it for the next program
        yield s.MountTmpfs("/tmp", limits.tmp, limits.inodes, executable, counted, policy.inside_root)
    yield from within_tmp
    if policy.workspace is None:
        yield s.MountTmpfs(WORKSPACE, limits.disk, limits.inodes, executable, counted)
    if isinstance(policy.workspace, Overlay):
        lowers = (*policy.workspace.sealed, policy.workspace.path)
        yield s.MountOverlay(WORKSPACE, lowers, policy.workspace.upper, executable)
    if isinstance(policy.workspace, Directory) and policy.workspace.protected:
        yield s.Protect(WORKSPACE, policy.workspace.protected)
    yield s.MountTmpfs("/dev/shm", limits.tmp, limits.inodes, False, counted, policy.inside_root)
    if policy.terminals:
        yield s.MountTerminals(TERMINALS, MAX_TERMINALS)
    if policy.socket is not None and not policy.builds:
        yield s.Link("/tmp/agentos.sock", SOCKET)


def image_steps(policy: Policy, host: Host, binds: Sequence[s.Bind]) -> Iterator[Step]:
    """Make the image the root: it has what is the agent's, and of the host's only devices."""
    image, limits = policy.image, policy.limits
    if image is None:
        return
    carried = [bind.target for bind in binds if is_in_image(bind)]
    own_tmp = [] if image.upper else ["/tmp"]
    mounted = ("/proc", *own_tmp, WORKSPACE, "/dev/shm", *([TERMINALS] if policy.terminals else []))
    carried += [path for path in mounted if path not in carried]
    name = image.user or "agent"
    lines = f"{name}:x:{UID}:{GID}:{name}:{WORKSPACE}:/bin/sh\n", f"{name}:x:{GID}:\n"
    texts = [_replace_account(text, name, line) for text, line in zip(image.accounts, lines, strict=True)]
    files = {} if policy.inside_root or image.upper else {"passwd": texts[0], "group": texts[1]}
    files |= {"hosts": _ETC_FILES["hosts"], **git_files(policy)}
    directories = (CODE, *([ROOT_HOME] if policy.inside_root else []), *(["/tmp"] if image.upper else []))
    if policy.inside_root and host.uid != 0:
        files |= {"apt/apt.conf.d/99agentos": APT_AS_ROOT}
    if policy.network == "filtered":
        files["resolv.conf"] = FILTERED_RESOLVER
    size = 0 if policy.profile == "strict" else limits.disk
    own = tuple([(f"/etc/{name}", text) for name, text in files.items()])
    # Landlock lets what writes below "/" write to /proc, too, which no wall here needs to be written.
    closed = ("/proc",) if policy.inside_root or image.upper else ()
    yield s.MountImage(
        image.path,
        tuple(carried),
        directories,
        own,
        size,
        limits.inodes,
        counted=not host.memory_cgroup,
        closed=closed,
        upper=image.upper,
    )


def is_in_image(bind: s.Bind) -> bool:
    """Whether a jail with an image has this, too, and not only one with the host's system."""
    return bind.device or is_own(bind) or bind.target.startswith(f"{SDK}/") or bind.target == "/etc/resolv.conf"


def _replace_account(text: str, name: str, line: str) -> str:
    """The lines of passwd or group without those of the sandbox's user, and then its own."""
    rows = [row for row in text.splitlines() if row.partition(":")[0] != name and row.split(":")[2:3] != [str(UID)]]
    return "".join(f"{row}\n" for row in rows) + line


def git_files(policy: Policy) -> Mapping[str, str]:
    """Return files for /etc that make git ignore protected names, so that placeholder files aren't committed.

    In an overlay git's index has other owners than the files: without checkStat git reads all of them once.
    """
    if isinstance(policy.workspace, Overlay):
        return {"gitconfig": "[core]\n\tcheckStat = minimal\n"}
    if not isinstance(policy.workspace, Directory) or not policy.workspace.protected:
        return {}
    ignored = "".join(f"/{name}\n" for name in policy.workspace.protected if not name.startswith(".git/"))
    return {"gitconfig": "[core]\n\texcludesFile = /etc/gitignore\n", "gitignore": ignored}
