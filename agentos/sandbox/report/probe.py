"""Probe the host: find out which isolation layers work, by running a trivial program in each of them.

Kernel versions and settings aren't trusted: a host may allow a call and deny the one that follows it. Settings are
read only to name the one that is in the way.
"""

import contextlib
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import or_

import trio
from msgspec.structs import replace

from agentos.sandbox import host_ids
from agentos.sandbox import plan as p
from agentos.sandbox import steps as s
from agentos.sandbox.cgroups.discover import Cgroups
from agentos.sandbox.errors import SandboxError, StepFailed
from agentos.sandbox.files import interpreter_prefixes
from agentos.sandbox.files.root_files import (
    GID,
    NETWORK_FILES,
    SYSTEM_FILES,
    SYSTEM_PATHS,
    UID,
    find_public_parts,
    list_runtime_files,
)
from agentos.sandbox.files.sub_ids import read_sub_ids
from agentos.sandbox.filters import landlock, profile, seccomp
from agentos.sandbox.host import Host
from agentos.sandbox.policy import Interpreter, Overlay, Policy, Program, RootImage
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds

from . import levels, remedies
from .levels import Finding

_RLIMITS = ("NOFILE", "FSIZE", "NPROC", "CORE", "DATA", "RTPRIO", "NICE", "MEMLOCK", "MSGQUEUE", "SIGPENDING")
_MECHANISMS = {
    "cgroup_ns": "unshare",
    "root": "pivot_root onto a tmpfs",
    "own_uid": "uid_map",
    "capabilities": "capset, bounding set, securebits",
    "no_new_privs": "prctl",
    "rlimits": "setrlimit",
}
OVERLAY_HALF = "a directory of the lower layer can't be removed and made again in it"
TRIAL_IDS = HostIds(host_ids.FIRST_ID, host_ids.FIRST_ID)
_TRUE_PROGRAM = s.Execute(("/bin/true",), (("PATH", "/usr/bin:/bin"),), "/")


def read_host(memory_cgroup: bool = False) -> Host:
    """Return the properties of this host that a plan needs. ``memory_cgroup``: a cgroup limits the programs' memory."""
    trees = (*list_runtime_files(), *NETWORK_FILES["host"])
    parts = [part for tree in trees for part in ([tree] if os.path.islink(tree) else find_public_parts(tree))]
    paths = (*SYSTEM_PATHS, *SYSTEM_FILES, *parts)
    links = {path: os.readlink(path) for path in {*SYSTEM_PATHS, *parts}.difference(trees) if os.path.islink(path)}
    hard = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in _RLIMITS}
    return Host(
        os.geteuid(),
        os.getegid(),
        os.uname().machine,
        directories=frozenset(path for path in paths if path not in links and os.path.exists(path)),
        links=links,
        landlock_abi=_landlock_abi(),
        cgroup_namespace=os.path.exists("/proc/self/ns/cgroup"),
        memory_cgroup=memory_cgroup,
        memfd_noexec=_can_write("/proc/sys/vm/memfd_noexec"),
        hard_limits={name: limit for name, limit in hard.items() if limit != resource.RLIM_INFINITY},
        interpreter=own_interpreter(),
        sub_ids=read_sub_ids(os.geteuid()) if os.geteuid() != 0 else None,
    )


def _can_write(path: str) -> bool:
    """Whether the file can be opened for writing; it isn't changed. A new process has the same uid at first."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:  # ENOENT before Linux 6.3, EACCES without root, EROFS in most containers
        return False
    return True


def own_interpreter() -> Interpreter:
    """Return the running interpreter, which agents get by default.

    Python keeps a ``..`` of the path that it was started by in ``sys.executable``, but in no prefix.
    """
    return Interpreter(os.path.normpath(sys.executable), sys.prefix, sys.base_prefix)


def _landlock_abi() -> int:
    try:
        return landlock.probe_abi()
    except OSError:  # even the version query is denied; the trial reports the reason
        return 0


def remove_broken_layers(host: Host, found: Mapping[str, Finding]) -> Host:
    """Return the host without the layers that exist but don't work: a plan that uses them would fail."""
    return replace(
        host,
        landlock_abi=host.landlock_abi if found["landlock"].works else 0,
        cgroup_namespace=host.cgroup_namespace and found["cgroup_ns"].works,
    )


async def examine(spawner: Spawner, host: Host, cgroups: Cgroups) -> tuple[Host, str]:
    """Try the layers: returns the host without those that don't work, and a sentence on what agents get by default."""
    found = await probe_layers(spawner, host)
    root = cgroups.root
    limits = {
        name: Finding(
            True, mechanism=f"cgroup v{root.version}" if root is not None and name in root.controllers else ""
        )
        for name in ("memory", "pids", "cpu")
    }
    return remove_broken_layers(host, found), levels.describe_default({**found, **limits}, host.uid)


async def probe_layers(spawner: Spawner, host: Host) -> Mapping[str, Finding]:
    """Return a finding for each layer that doesn't need a cgroup, by the layer's name on the wire.

    One trial has all that the host seems to have. Only if it fails is each tried alone, to find what doesn't work.

    With root the programs run as :data:`TRIAL_IDS`, or, if that fails, the other layers are tried as the kernel's uid.
    """
    surroundings = await trio.to_thread.run_sync(remedies.read_surroundings)
    ids = TRIAL_IDS if host.uid == 0 else HostIds(host.uid, host.gid)
    plans = await trio.to_thread.run_sync(_trial_plans, host, ids)  # builds filters, which takes milliseconds
    own_uid = Finding(False, "without root a program has the kernel's own uid on the host", asked=False)
    hopeful = {layer: plan for layer, plan in plans.items() if layer != "landlock" or host.landlock_abi}
    together = await _run_trial(spawner, _plan_together(hopeful), surroundings)
    found = dict.fromkeys(hopeful, together) if together.works else {}
    if host.uid == 0:
        own_uid = together if together.works else await _run_trial(spawner, plans["user_ns"], surroundings)
        if not own_uid.works:
            plans = await trio.to_thread.run_sync(_trial_plans, host, HostIds(host.uid, host.gid))
    for layer, plan in plans.items():
        if layer not in found:
            found[layer] = await _run_trial(spawner, plan, surroundings)
    return {
        layer: replace(finding, mechanism=_mechanism_of(layer, host) if finding.works else "")
        for layer, finding in {**found, "own_uid": own_uid, **_untried_layers(host)}.items()
    }


async def probe_filtered_network(spawner: Spawner, host: Host) -> Finding:
    """Return whether a network namespace can have what a filtered network needs, beyond the layer ``net_ns``."""
    surroundings = await trio.to_thread.run_sync(remedies.read_surroundings)
    ids = TRIAL_IDS if host.uid == 0 else HostIds(host.uid, host.gid)
    sockets = (("tcp", "127.0.0.1", 80), ("tcp", "0.0.0.0", 80), ("udp", "127.0.0.1", 53))
    steps = (s.LoopbackUp(), s.RouteToLoopback(*p.FILTERED_ADDRESSES), s.Listen(sockets))
    return await _run_trial(spawner, _plan_trial(host, ids, p.NEWNET, *steps), surroundings)


async def probe_root_inside(spawner: Spawner, host: Host, counted: bool = True) -> Finding:
    """Return whether a program can be root inside. ``counted``: control groups count its memory and processes."""
    host = replace(host, memory_cgroup=counted, pids_cgroup=counted)
    ids = host_ids.first_of_block(host_ids.TRIAL_BLOCK) if host.uid == 0 else HostIds(host.uid, host.gid)
    policy = Policy(image=RootImage("/"), inside_root=True)
    clone, identity = p.plan_root_inside(policy, host, ids)
    steps = (clone, identity, s.DropCapabilities(s.INSIDE_ROOT), s.NoNewPrivileges(), _TRUE_PROGRAM)
    return await _run_trial(spawner, steps, await trio.to_thread.run_sync(remedies.read_surroundings))


async def probe_overlay(spawner: Spawner, host: Host, place: str) -> Finding:
    """Return whether a workspace can be an overlay whose layers lie in the directory ``place``.

    A directory of the lower layer is removed and made again: without extended attributes of users, as in a tmpfs
    before Linux 6.6, an overlay can be mounted, and that fails.
    """
    surroundings = await trio.to_thread.run_sync(remedies.read_surroundings)
    ids = TRIAL_IDS if host.uid == 0 else HostIds(host.uid, host.gid)
    try:
        trial = await trio.to_thread.run_sync(_make_trial_layers, place, ids if host.uid == 0 else None)
    except OSError as error:
        return Finding(False, f"{place}: {error.strerror}")
    try:
        found = await _run_trial(spawner, _plan_overlay_trial(host, ids, trial), surroundings)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_remove_trial_layers, trial)
    if found.works:
        return found
    reason = found.reason if found.reason.startswith(("MountOverlay", "DetachLayer")) else OVERLAY_HALF
    return Finding(False, reason, found.remedy or remedies.OVERLAY_REMEDY)


def _make_trial_layers(place: str, owner: HostIds | None) -> str:
    trial = tempfile.mkdtemp(prefix=".trial-", dir=place)
    for part in ("lower", "lower/removed", "upper", "upper/tree", "upper/work"):
        os.mkdir(f"{trial}/{part}", 0o755)
        if owner is not None:
            os.chown(f"{trial}/{part}", owner.uid, owner.gid)
    return trial


def _remove_trial_layers(trial: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.chmod(f"{trial}/upper/work/work", 0o700)  # Linux makes it without permissions
    shutil.rmtree(trial)


def _plan_overlay_trial(host: Host, ids: HostIds, trial: str) -> Sequence[Step]:
    policy = Policy(workspace=Overlay(f"{trial}/lower", f"{trial}/upper"))
    program = Program(("/bin/sh", "-c", "rmdir removed && mkdir removed && : >removed/file"))
    return p.plan_sandbox(policy, program, host, ids)


def _untried_layers(host: Host) -> Mapping[str, Finding]:
    """Return findings for layers that needn't be tried, because they can't work here."""
    absent = {}
    if not host.cgroup_namespace:
        absent["cgroup_ns"] = Finding(False, "there is no /proc/self/ns/cgroup", asked=False)
    if host.architecture not in profile.ARCHITECTURES:
        known = ", ".join(profile.ARCHITECTURES)
        absent["seccomp"] = Finding(False, f"there are filters for {known}, and none for {host.architecture}")
    if host.interpreter is not None and (why := interpreter_prefixes.explain_unfit(host.interpreter)) is not None:
        absent["root"] = Finding(False, why, interpreter_prefixes.REMEDY)
    return absent


def _mechanism_of(layer: str, host: Host) -> str:
    if layer == "landlock":
        return f"ABI {host.landlock_abi}"
    if layer == "seccomp":
        return f"BPF filter, {len(seccomp.build_filter('standard', host.architecture))} instructions"
    return _MECHANISMS.get(layer, "clone3")


def _trial_plans(host: Host, ids: HostIds) -> Mapping[str, Sequence[Step]]:
    """Return the steps that test each layer, in an order in which one program can take them all."""
    trial = partial(_plan_trial, host, ids)
    root = (s.PrivateMounts(), s.MountRoot(1 << 20, 64))
    return {
        "user_ns": trial(0, s.ForbidNamespaces()),
        "rlimits": trial(0, s.SetLimits((("CORE", 0), ("RTPRIO", 0)))),
        "pid_ns": trial(p.NEWNS, *root, s.MakeDirectory("/proc"), s.MountProc("/proc")),
        "mount_ns": trial(p.NEWNS, *root),
        "net_ns": trial(p.NEWNET, s.LoopbackUp()),
        "ipc_ns": trial(p.NEWIPC),
        "uts_ns": trial(p.NEWUTS, s.Hostname("trial")),
        "cgroup_ns": trial(0, s.UnshareCgroup()),
        "root": trial(p.NEWNS, *root, *_minimal_root_steps(host)),
        "capabilities": trial(0, s.DropCapabilities()),
        "no_new_privs": trial(0, s.NoNewPrivileges()),
        "landlock": trial(0, s.NoNewPrivileges(), *_landlock_steps(host.landlock_abi or 1)),  # 1: the refusal says why
        "seccomp": trial(0, s.NoNewPrivileges(), *_seccomp_steps(host)),
    }


def _plan_together(plans: Mapping[str, Sequence[Step]]) -> Sequence[Step]:
    """Return one trial with the namespaces and the steps of all, each once."""
    first, program = next(iter(plans.values()))[0], _TRUE_PROGRAM
    assert isinstance(first, s.Clone)
    flags = reduce(or_, (clone.flags for plan in plans.values() for clone in plan if isinstance(clone, s.Clone)))
    steps = {(type(step), step): step for plan in plans.values() for step in plan[1:-1]}  # all empty tuples are equal
    return (first._replace(flags=flags), *steps.values(), program)


def _plan_trial(host: Host, ids: HostIds, flags: int, *steps: Step) -> tuple[Step, ...]:
    maps = (f"{UID} {ids.uid} 1", f"{GID} {ids.gid} 1", host.uid != 0)
    identity = s.TakeIdentity(UID, GID, drop_groups=host.uid == 0)
    return (s.Clone(p.NEWUSER | p.NEWPID | flags, *maps), identity, *steps, _TRUE_PROGRAM)


def _minimal_root_steps(host: Host) -> Sequence[Step]:
    """Steps for a minimal root in which a program can start. Sources may be opened late: nothing here hides them."""
    paths = [path for path in SYSTEM_PATHS if path in host.directories]
    return (
        s.MakeDirectory("/dev"),
        *(s.OpenSource(path) for path in (*paths, "/dev/null")),
        *(s.Bind(path, path) for path in paths),
        s.Bind("/dev/null", "/dev/null", device=True),
        *(s.Link(path, target) for path, target in host.links.items()),
        s.CloseSources(),
        s.SwitchRoot(),
        s.ReadOnlyRoot(),
    )


def _seccomp_steps(host: Host) -> Sequence[Step]:
    known = host.architecture in profile.ARCHITECTURES
    return (s.Seccomp(seccomp.filter_bytes("standard", host.architecture).hex()),) if known else ()


def _landlock_steps(abi: int) -> Sequence[Step]:
    walls = landlock.HandledRights(landlock.ALL_FILES)
    allowed = landlock.READ | landlock.EXECUTE | landlock.FileRights.WRITE_FILE
    rules = landlock.build_ruleset(abi, walls, [landlock.PathRule("/", allowed)])
    paths = tuple((rule.path, int(rule.effective(rules.walls))) for rule in rules.paths)
    return (s.Landlock(rules.pack().hex(), paths),)


async def _run_trial(spawner: Spawner, trial: Sequence[Step], surroundings: remedies.Surroundings) -> Finding:
    try:
        sandbox = await spawner.spawn(trial)
    except StepFailed as failure:
        return Finding(
            False, str(failure), remedies.find_remedy(failure.step, failure.text, failure.errno, surroundings)
        )
    except SandboxError as failure:
        return Finding(False, str(failure))
    for fd in (sandbox.stdout, sandbox.stderr):
        os.close(fd)
    for one in sandbox.sockets:
        one.close()
    status = await sandbox.wait()
    program = trial[-1].argv[0] if isinstance(trial[-1], s.Execute) else ""
    return Finding(status.code == 0, "" if status.code == 0 else f"{program}: {status}")
