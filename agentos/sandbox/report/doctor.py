"""Examine the host before an agent runs: try every isolation layer, judge the result, collect host facts.

Leaves nothing behind, and moves no process but our own, for the duration of the examination.
"""

import contextlib
import errno
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import trio
from msgspec import Struct
from msgspec.structs import replace

from agentos.sandbox.cgroups import files
from agentos.sandbox.cgroups.discover import (
    DELEGATE_ADVICE,
    KERNEL_LEAF,
    Cgroups,
    Group,
    HostCgroups,
    V1Hierarchies,
    V2Scope,
    discover_here,
    open_root,
)
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.cgroups.values import Limits as CgroupLimits
from agentos.sandbox.errors import SandboxError
from agentos.sandbox.files import images
from agentos.sandbox.files.sub_ids import read_sub_ids
from agentos.sandbox.host import Host
from agentos.sandbox.start.spawner import Spawner

from . import levels, probe, remedies
from .levels import Finding
from .walls import LAYERS

_ZYGOTE_TIMEOUT = 60.0  # seconds for the zygote: no configuration file says how slow this host is
_TRIAL_BYTES = 1 << 20  # bytes
_TRIAL_LIMITS = {
    "memory": CgroupLimits(memory=64 * _TRIAL_BYTES),
    "pids": CgroupLimits(pids=1),
    "cpu": CgroupLimits(cpu=0.5),
}
_TRIAL_PROGRAM = f"""
import os, sys
sys.stdin.read(1)
pages = b"x" * {_TRIAL_BYTES}
try:
    child = os.fork()
except OSError as error:
    print(error.errno, flush=True)
else:
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    print(0, flush=True)
sys.stdin.read()
"""


class Report(Struct, frozen=True):
    """The isolation that an agent gets on this host. ``layers`` are in wire order, ``facts`` are for people."""

    level: str
    verdict: str
    strict: str  # what is missing for ``strict``, or that nothing is
    layers: Mapping[str, Finding]
    facts: Mapping[str, str]
    profile: str | None = None  # the AppArmor profile to install, if one is needed


def examine_host(state: Path) -> Report:
    """Try every layer as the current user. ``state`` is the kernel's state directory. Blocks for less than a second."""
    limits = try_cgroup_limits()
    with _start_spawner() as spawner:
        layers = _try_layers(limits, spawner)
        facts = _collect_facts(state, layers, spawner)
    return Report(
        levels.best_level(layers),
        levels.describe_default(layers, os.geteuid()),
        levels.describe_strict(layers),
        layers,
        facts,
        remedies.apparmor_profile() if any(one.remedy == remedies.APPARMOR_REMEDY for one in layers.values()) else None,
    )


def try_layers() -> Mapping[str, Finding]:
    """Try every layer as the current user; returns findings in wire order. Blocks."""
    limits = try_cgroup_limits()
    with _start_spawner() as spawner:
        return _try_layers(limits, spawner)


@contextlib.contextmanager
def _start_spawner() -> Iterator[Spawner | Exception]:
    """Start the spawner of all trials, as each start costs more than a trial; yields the reason if it can't start.

    Its zygote is no part of our cgroup while the limits are tried: it has to be started after that.
    """
    try:
        spawner = Spawner.start(_ZYGOTE_TIMEOUT)
    except (OSError, SandboxError) as error:
        yield error
        return
    try:
        yield spawner
    finally:
        spawner.close()


def _try_layers(limits: Mapping[str, Finding], spawner: Spawner | Exception) -> Mapping[str, Finding]:
    walls = _try_walls(spawner)
    found = {**walls, **_without_cgroups(limits, walls), "disk": _disk_finding(walls["root"])}
    return {name: found[name] for name in LAYERS}


def _try_walls(spawner: Spawner | Exception) -> Mapping[str, Finding]:
    if isinstance(spawner, Exception):
        number = spawner.errno if isinstance(spawner, OSError) and spawner.errno else 0
        remedy = remedies.find_remedy("zygote", str(spawner), number, remedies.read_surroundings())
        return dict.fromkeys(LAYERS, Finding(False, f"no process can be started: {spawner}", remedy))
    return trio.run(probe.probe_layers, spawner, probe.read_host())


def try_cgroup_limits() -> Mapping[str, Finding]:
    """Try whether cgroups can limit memory, pids and CPU. Blocks."""
    try:
        found = discover_here()
        with _own_cgroups(found) as made:
            missing = {one.limit: Finding(False, one.reason, one.remedy) for one in made.missing}
            return {**{name: _try_limit(made.root, name) for name in sorted(made.controllers)}, **missing}
    except (CgroupError, OSError) as error:
        return dict.fromkeys(_TRIAL_LIMITS, Finding(False, f"control groups: {error}"))


@contextlib.contextmanager
def kernel_cgroup() -> Iterator[str | None]:
    """Make a cgroup for a kernel that we start; yields its directory, or None if there is no need of one.

    With version 2 a kernel doesn't use a cgroup that contains other processes, such as ours.
    """
    found = discover_here()
    if not isinstance(found, V2Scope):
        yield None
        return
    with _own_cgroups(found) as made:
        if made.root is None:
            yield None
            return
        directory = f"{found.directory}/agentos-doctor"
        files.create_directory(directory)
        try:
            yield directory
        finally:
            files.remove_directories(files.list_tree(directory))


@contextlib.contextmanager
def _own_cgroups(found: HostCgroups) -> Iterator[Cgroups]:
    """Create the cgroups that a kernel would create here; restore the former state afterwards."""
    with contextlib.ExitStack() as undo:
        if isinstance(found, V2Scope):
            undo.enter_context(_restore_cgroups(found.directory))
        made = open_root(found)
        if made.root is not None:
            undo.callback(made.root.remove)
        yield made


@contextlib.contextmanager
def _restore_cgroups(directory: str) -> Iterator[None]:
    """Undo :func:`open_root` with version 2: move us back, disable what was enabled, remove the leaf."""
    leaf = f"{directory}/{KERNEL_LEAF}"
    enabled = _read_enabled_controllers(directory)
    existed, others = os.path.isdir(leaf), files.list_processes([leaf])
    try:
        yield
    finally:
        for name in _read_enabled_controllers(directory) - enabled:
            files.write_value(f"{directory}/cgroup.subtree_control", f"-{name}")
        for pid in files.list_processes([leaf]) - others:
            files.write_value(f"{directory}/cgroup.procs", pid)
        if not existed:
            files.remove_directories([leaf])


def _read_enabled_controllers(directory: str) -> frozenset[str]:
    return frozenset(files.read_text(f"{directory}/cgroup.subtree_control").split())


def _try_limit(root: Group | None, name: str) -> Finding:
    """Limit a program that takes a few pages and forks once; check that the kernel counts and refuses."""
    assert root is not None, "there is no controller without a group"
    remedy = DELEGATE_ADVICE.format(user="--user " if os.geteuid() else "")
    try:
        group = root.create_child(f"trial-{name}", _TRIAL_LIMITS[name])
        try:
            problem = describe_shortfall(group, name)
        finally:
            group.remove()
    except (CgroupError, OSError) as error:
        return Finding(False, str(error), remedy)
    return Finding(not problem, problem, remedy if problem else "", f"cgroup v{group.version}" if not problem else "")


def describe_shortfall(group: Group, name: str) -> str:
    """Describe a limit that didn't hold for a program in the cgroup; empty if it holds."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TRIAL_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            group.admit(program.pid)
            program.stdin.write(b"x")
            program.stdin.flush()
            output = program.stdout.readline().strip()
            used = group.usage()
        finally:
            program.kill()
    if name == "memory" and (used.memory or 0) < _TRIAL_BYTES:
        return f"a program took {_TRIAL_BYTES} bytes, and {used.memory} were counted"
    if name == "pids" and output != str(errno.EAGAIN).encode():
        return "a program forked although its cgroup was at its limit"
    return ""


def _without_cgroups(limits: Mapping[str, Finding], walls: Mapping[str, Finding]) -> Mapping[str, Finding]:
    """Replace missing cgroup limits: rlimits for each process, and a watcher for all processes of an agent."""
    if not (walls["rlimits"].works and walls["user_ns"].works):
        return limits
    instead = {"memory": "watcher + RLIMIT_DATA", "pids": "RLIMIT_NPROC in a user namespace of its own"}
    return {
        name: replace(finding, works=True, mechanism=instead[name])
        if not finding.works and name in instead
        else finding
        for name, finding in limits.items()
    }


def _disk_finding(root: Finding) -> Finding:
    """A workspace in memory has a size limit wherever it can be mounted."""
    return replace(root, mechanism="tmpfs of its size" if root.works else "")


def _collect_facts(state: Path, layers: Mapping[str, Finding], spawner: Spawner | Exception) -> Mapping[str, str]:
    surroundings = remedies.read_surroundings()
    count = surroundings.settings.get("user.max_user_namespaces", "can't be read")
    restrictions = [f"AppArmor profile {surroundings.apparmor}"] if surroundings.apparmor else []
    restrictions += ["a seccomp filter"] if surroundings.filtered else []
    restrictions += ["a chroot"] if surroundings.chroot else []
    restrictions += (
        [f"{len(surroundings.covered)} paths in /proc are covered by mounts"] if surroundings.covered else []
    )
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "user": f"uid {os.geteuid()}, gid {os.getegid()}",
        "python": f"{sys.executable} ({platform.python_version()})",
        "user namespaces": f"at most {count} for this user (user.max_user_namespaces)",
        "control groups": _describe_cgroups(),
        "around us": ", ".join(restrictions) or "no container's filter, profile or mask",
        "kept workspaces": _describe_kept_workspaces(),
        "filtered network": _describe_trial(spawner, probe.probe_filtered_network),
        "overlay workspaces": _describe_overlays(state, spawner),
        "root inside": _describe_root_inside(layers, spawner),
        "state directory": f"{state}: {_describe_state_directory(state)}",
    }


def _describe_cgroups() -> str:
    try:
        found = discover_here()
    except OSError as error:
        return f"none: {error}"
    if isinstance(found, V2Scope):
        return f"version 2, {found.directory} is delegated"
    if isinstance(found, V1Hierarchies):
        places = dict.fromkeys(
            found.directories[name] for name in sorted(_TRIAL_LIMITS.keys() & found.directories.keys())
        )
        return f"version 1, {', '.join(places)}"
    return "none that can be divided by this user"


def _describe_kept_workspaces() -> str:
    """Say how a kept workspace is limited: with root by an ext4 image, which is tried; otherwise by a watcher."""
    watched = "watched, may overshoot"
    if os.geteuid() != 0:
        return f"{watched}: only root can mount an image"
    try:
        with tempfile.TemporaryDirectory(prefix="agentos-doctor-") as directory:
            images.ensure_image(Path(directory, "image"), images.ImageSize(4 << 20, 64), probe.TRIAL_IDS)
    except (images.ImageUnavailable, OSError) as error:
        return f"{watched}: {error}"
    return "an ext4 image of its size each"


def _describe_overlays(state: Path, spawner: Spawner | Exception) -> str:
    """Say whether a workspace can have ``mode = "overlay"``, which is tried where the layers will lie."""
    parent = next(path for path in (state, *state.parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".agentos-doctor-", dir=parent) as place:
            return _describe_trial(spawner, partial(probe.probe_overlay, place=os.path.realpath(place)))
    except OSError as error:
        return f"no: {error.strerror}: {error.filename}"


def _describe_root_inside(layers: Mapping[str, Finding], spawner: Spawner | Exception) -> str:
    """Say whether an agent can have ``user = "root"``: control groups must count what rlimits count for each id."""
    uncounted = [name for name in ("memory", "pids") if not layers[name].mechanism.startswith("cgroup")]
    if os.geteuid() == 0 and uncounted:
        return f"no: no control group limits {' and '.join(uncounted)}"
    found = _describe_trial(spawner, partial(probe.probe_root_inside, counted=not uncounted))
    how = "one id, and calls that take others are pretended"
    if os.geteuid() == 0:
        how = "a block of ids for each agent"
    elif read_sub_ids(os.geteuid()) is not None and not uncounted:
        how = "your subordinate ids (/etc/subuid), or one id with an overlay"
    return f"{found}: {how}" if found == "works" else found


def _describe_trial(spawner: Spawner | Exception, trial: Callable[[Spawner, Host], Awaitable[Finding]]) -> str:
    """Say whether something works, which is tried."""
    if isinstance(spawner, Exception):
        return f"no: no process can be started: {spawner}"
    found = trio.run(trial, spawner, probe.read_host())
    remedy = f" ({found.remedy})" if found.remedy else ""
    return "works" if found.works else f"no: {found.reason}{remedy}"


def _describe_state_directory(state: Path) -> str:
    """Test by writing to the directory or, if it doesn't exist yet, to the parent in which it would be created."""
    parent = next(path for path in (state, *state.parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".agentos-doctor-", dir=parent):
            return "writable" if parent == state else f"doesn't exist, can be created in {parent}"
    except OSError as error:
        return f"not writable: {error.strerror}: use agentos run --state-dir DIR"
