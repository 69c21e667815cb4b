"""What this host can do: each wall is found out by building it around a program that does nothing.

Not by a kernel's version and not by a setting: a host may allow the call and refuse what comes after it. A setting is
only looked at to say which of them is in the way.
"""

import errno
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from . import landlock, seccomp
from . import plan as p
from . import steps as s
from .plan import Host, Outer
from .spawner import Spawner, StepFailed
from .steps import Step

_LIMITS = ("NOFILE", "FSIZE", "NPROC", "CORE", "AS", "RTPRIO", "NICE", "MEMLOCK", "MSGQUEUE")
_NOTHING = s.Execute(("/bin/true",), (("PATH", "/usr/bin:/bin"),), "/")


@frozen
class Finding:
    """Whether a wall can be built here; where it can't, what happened and what to change."""

    works: bool
    reason: str = ""
    knob: str = ""


def host(memory_cgroup: bool = False) -> Host:
    """What a plan must know of this host. ``memory_cgroup``: programs are put into one that limits their memory."""
    paths = (*p.SYSTEM, *p.SYSTEM_FILES, *p.NETWORK_FILES)
    links = {path: os.readlink(path) for path in p.SYSTEM if os.path.islink(path)}
    hard = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in _LIMITS}
    return Host(
        os.geteuid(),
        os.getegid(),
        os.uname().machine,
        directories=frozenset(path for path in paths if path not in links and os.path.exists(path)),
        links=links,
        landlock_abi=landlock.probe_abi(),
        cgroup_namespace=os.path.exists("/proc/self/ns/cgroup"),
        memory_cgroup=memory_cgroup,
        hard_limits={name: limit for name, limit in hard.items() if limit != resource.RLIM_INFINITY},
    )


async def probe(spawner: Spawner, here: Host, outer: Outer | None = None) -> Mapping[str, Finding]:
    """A finding for each layer that doesn't need a cgroup, by its name on the wire."""
    who = outer or Outer(here.uid, here.gid)
    return {layer: await _try(spawner, trial) for layer, trial in _trials(here, who).items()}


def _trials(here: Host, who: Outer) -> Mapping[str, Sequence[Step] | str]:
    """For each layer the steps that show it, or why there is nothing to try."""

    def trial(flags: int, *steps: Step) -> tuple[Step, ...]:
        maps = (f"{p.UID} {who.uid} 1", f"{p.GID} {who.gid} 1", here.uid != 0)
        identity = s.TakeIdentity(p.UID, p.GID, drop_groups=here.uid == 0)
        return (s.Clone(p.NEWUSER | p.NEWPID | flags, *maps), identity, *steps, _NOTHING)

    root = (s.PrivateMounts(), s.MountRoot(1 << 20, 64))
    return {
        "user_ns": trial(0, s.ForbidNamespaces()),
        "pid_ns": trial(p.NEWNS, *root, s.MakeDirectory("/proc"), s.MountProc("/proc")),
        "mount_ns": trial(p.NEWNS, *root),
        "net_ns": trial(p.NEWNET, s.LoopbackUp()),
        "ipc_ns": trial(p.NEWIPC),
        "uts_ns": trial(p.NEWUTS, s.Hostname("trial")),
        "cgroup_ns": trial(0, s.UnshareCgroup()) if here.cgroup_namespace else "this kernel has no cgroup namespaces",
        "root": trial(p.NEWNS, *root, *_a_small_root(here)),
        "own_uid": trial(0) if here.uid == 0 else "without root a program is the kernel's own user outside",
        "capabilities": trial(0, s.DropCapabilities()),
        "no_new_privs": trial(0, s.NoNewPrivileges()),
        "seccomp": trial(0, s.NoNewPrivileges(), s.Seccomp(seccomp.program("standard", here.architecture).hex())),
        "landlock": trial(0, s.NoNewPrivileges(), *_a_rule(here.landlock_abi))
        if here.landlock_abi
        else "this kernel has no Landlock, or it is switched off",
        "rlimits": trial(0, s.SetLimits((("CORE", 0), ("RTPRIO", 0)))),
    }


def _a_small_root(here: Host) -> Sequence[Step]:
    """A root with just what a program needs to start. Sources can be opened late: nothing here hides them."""
    shown = [path for path in p.SYSTEM if path in here.directories]
    return (
        s.MakeDirectory("/dev"),
        *(s.OpenSource(path) for path in (*shown, "/dev/null")),
        *(s.Bind(path, path) for path in shown),
        s.Bind("/dev/null", "/dev/null", device=True),
        *(s.Link(path, target) for path, target in here.links.items()),
        s.CloseSources(),
        s.SwitchRoot(),
        s.ReadOnlyRoot(),
    )


def _a_rule(abi: int) -> Sequence[Step]:
    walls = landlock.Walls(landlock.ALL_FILES)
    allowed = landlock.READ | landlock.EXECUTE | landlock.Files.WRITE_FILE
    rules = landlock.ruleset(abi, walls, [landlock.PathRule("/", allowed)])
    paths = tuple((rule.path, int(rule.effective(rules.walls))) for rule in rules.paths)
    return (s.Landlock(rules.pack().hex(), paths, ()),)


async def _try(spawner: Spawner, trial: Sequence[Step] | str) -> Finding:
    if isinstance(trial, str):
        return Finding(False, trial)
    try:
        sandbox = await spawner.spawn(trial)
    except StepFailed as failure:
        return Finding(False, str(failure), _knob(failure))
    for fd in (sandbox.stdout, sandbox.stderr):
        os.close(fd)
    status = await sandbox.wait()
    return Finding(status.code == 0, "" if status.code == 0 else f"{_NOTHING.argv[0]}: {status}")


_SETTINGS = (  # what stands in the way at this value
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile with 'userns,' for this interpreter, or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def _knob(failure: StepFailed) -> str:
    if failure.errno not in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS):
        return ""
    for path, bad, knob in _SETTINGS:
        try:
            if Path(path).read_text().strip() == bad:
                return knob
        except FileNotFoundError:
            continue
    if failure.step.startswith("MountProc"):
        return "something is mounted over parts of /proc here, as containers do: give this one an unmasked /proc"
    return "a container's seccomp profile or capabilities may refuse this: allow unshare, clone and mount in it"
