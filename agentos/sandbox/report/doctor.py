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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import trio
from attrs import evolve, frozen

from agentos.sandbox import images
from agentos.sandbox.cgroups import files as files
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
from agentos.sandbox.cgroups.values import Limits as Most
from agentos.sandbox.spawner import SandboxError, Spawner

from . import levels, probe, remedies
from .levels import Finding
from .walls import LAYERS

_PATIENCE = 60.0  # seconds for the zygote: no configuration file says how slow this host is
_PAGES = 1 << 20  # bytes
_TRIALS = {"memory": Most(memory=64 * _PAGES), "pids": Most(pids=1), "cpu": Most(cpu=0.5)}
_PROGRAM = f"""
import os, sys
sys.stdin.read(1)
pages = b"x" * {_PAGES}
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


@frozen
class Report:
    """The isolation that an agent gets on this host. ``layers`` are in wire order, ``facts`` are for people."""

    level: str
    verdict: str
    strict: str  # what is missing for ``strict``, or that nothing is
    layers: Mapping[str, Finding]
    facts: Mapping[str, str]
    profile: str | None = None  # the AppArmor profile to install, if one is needed


def examine(state: Path) -> Report:
    """Try every layer as the current user. ``state`` is the kernel's state directory. Blocks for less than a second."""
    layers = layers_here()
    return Report(
        levels.best(layers),
        levels.verdict(layers, os.geteuid()),
        levels.about_strict(layers),
        layers,
        _facts(state),
        remedies.apparmor_profile() if any(one.knob == remedies.APPARMOR for one in layers.values()) else None,
    )


def layers_here() -> Mapping[str, Finding]:
    """Try every layer as the current user; returns findings in wire order. Blocks."""
    limits = limits_here()
    walls = _walls_here()
    found = {**walls, **_without_cgroups(limits, walls), "disk": _disk(walls["root"])}
    return {name: found[name] for name in LAYERS}


def _walls_here() -> Mapping[str, Finding]:
    try:
        spawner = Spawner.start(_PATIENCE)
    except (OSError, SandboxError) as error:
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        knob = remedies.knob("zygote", str(error), number, remedies.surroundings())
        return dict.fromkeys(LAYERS, Finding(False, f"no process can be started: {error}", knob))
    try:
        return trio.run(probe.probe, spawner, probe.host())
    finally:
        spawner.close()


def limits_here() -> Mapping[str, Finding]:
    """Try whether cgroups can limit memory, pids and CPU. Blocks."""
    try:
        found = discover_here()
        with _our_groups(found) as made:
            missing = {one.what: Finding(False, one.reason, one.knob) for one in made.missing}
            return {**{name: _limit(made.root, name) for name in sorted(made.controllers)}, **missing}
    except (CgroupError, OSError) as error:
        return dict.fromkeys(_TRIALS, Finding(False, f"control groups: {error}"))


@contextlib.contextmanager
def room_for_a_kernel() -> Iterator[Callable[[], None]]:
    """Make a cgroup for a kernel that we start; yields a function that the new process must call first.

    With version 2 a kernel doesn't use a cgroup that contains other processes, such as ours.
    """
    found = discover_here()
    if not isinstance(found, V2Scope):
        yield lambda: None
        return
    with _our_groups(found) as made:
        if made.root is None:
            yield lambda: None
            return
        room = f"{found.directory}/agentos-doctor"
        files.create_directory(room)
        try:
            yield lambda: files.write_value(f"{room}/cgroup.procs", 0)
        finally:
            files.remove_directories(files.list_tree(room))


@contextlib.contextmanager
def _our_groups(found: HostCgroups) -> Iterator[Cgroups]:
    """Create the cgroups that a kernel would create here; restore the former state afterwards."""
    with contextlib.ExitStack() as undo:
        if isinstance(found, V2Scope):
            undo.enter_context(_as_it_was(found.directory))
        made = open_root(found)
        if made.root is not None:
            undo.callback(made.root.remove)
        yield made


@contextlib.contextmanager
def _as_it_was(directory: str) -> Iterator[None]:
    """Undo :func:`open_root` with version 2: move us back, disable what was enabled, remove the leaf."""
    leaf = f"{directory}/{KERNEL_LEAF}"
    enabled = _enabled(directory)
    existed, others = os.path.isdir(leaf), files.list_processes([leaf])
    try:
        yield
    finally:
        for name in _enabled(directory) - enabled:
            files.write_value(f"{directory}/cgroup.subtree_control", f"-{name}")
        for pid in files.list_processes([leaf]) - others:
            files.write_value(f"{directory}/cgroup.procs", pid)
        if not existed:
            files.remove_directories([leaf])


def _enabled(directory: str) -> frozenset[str]:
    return frozenset(files.read_text(f"{directory}/cgroup.subtree_control").split())


def _limit(root: Group | None, name: str) -> Finding:
    """Limit a program that takes a few pages and forks once; check that the kernel counts and refuses."""
    assert root is not None, "there is no controller without a group"
    knob = DELEGATE_ADVICE.format(user="--user " if os.geteuid() else "")
    try:
        group = root.create_child(f"trial-{name}", _TRIALS[name])
        try:
            problem = shortfall(group, name)
        finally:
            group.remove()
    except (CgroupError, OSError) as error:
        return Finding(False, str(error), knob)
    return Finding(not problem, problem, knob if problem else "", f"cgroup v{group.version}" if not problem else "")


def shortfall(group: Group, name: str) -> str:
    """Describe a limit that didn't hold for a program in the cgroup; empty if it holds."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
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
            said = program.stdout.readline().strip()
            used = group.usage()
        finally:
            program.kill()
    if name == "memory" and (used.memory or 0) < _PAGES:
        return f"a program took {_PAGES} bytes, and {used.memory} were counted"
    if name == "pids" and said != str(errno.EAGAIN).encode():
        return "a program forked although its group was full"
    return ""


def _without_cgroups(limits: Mapping[str, Finding], walls: Mapping[str, Finding]) -> Mapping[str, Finding]:
    """Replace missing cgroup limits: rlimits for each process, and a watcher for all processes of an agent."""
    if not (walls["rlimits"].works and walls["user_ns"].works):
        return limits
    instead = {"memory": "watcher + RLIMIT_DATA", "pids": "RLIMIT_NPROC in a user namespace of its own"}
    return {
        name: evolve(finding, works=True, mechanism=instead[name]) if not finding.works and name in instead else finding
        for name, finding in limits.items()
    }


def _disk(root: Finding) -> Finding:
    """A workspace in memory has a size limit wherever it can be mounted."""
    return evolve(root, mechanism="tmpfs of its size" if root.works else "")


def _facts(state: Path) -> Mapping[str, str]:
    around = remedies.surroundings()
    count = around.settings.get("user.max_user_namespaces", "can't be read")
    stands = [f"AppArmor profile {around.apparmor}"] if around.apparmor else []
    stands += ["a seccomp filter"] if around.filtered else []
    stands += ["a chroot"] if around.chroot else []
    stands += [f"{len(around.covered)} places in /proc are covered"] if around.covered else []
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "user": f"uid {os.geteuid()}, gid {os.getegid()}",
        "python": f"{sys.executable} ({platform.python_version()})",
        "user namespaces": f"at most {count} for this user (user.max_user_namespaces)",
        "control groups": _where(),
        "around us": ", ".join(stands) or "no container's filter, profile or mask",
        "kept workspaces": _kept(),
        "state directory": f"{state}: {_writable(state)}",
    }


def _where() -> str:
    try:
        found = discover_here()
    except OSError as error:
        return f"none: {error}"
    if isinstance(found, V2Scope):
        return f"version 2, {found.directory} is ours"
    if isinstance(found, V1Hierarchies):
        places = dict.fromkeys(found.directories[name] for name in sorted(_TRIALS.keys() & found.directories.keys()))
        return f"version 1, {', '.join(places)}"
    return "none that is ours to divide"


def _kept() -> str:
    """Say how a kept workspace is limited: with root by an ext4 image, which is tried; otherwise by a watcher."""
    watched = "watched, may overshoot"
    if os.geteuid() != 0:
        return f"{watched}: only root can mount an image"
    try:
        with tempfile.TemporaryDirectory(prefix="agentos-doctor-") as place:
            images.ensure_image(Path(place, "image"), images.ImageSize(4 << 20, 64), probe.SOMEBODY)
    except (images.ImageUnavailable, OSError) as error:
        return f"{watched}: {error}"
    return "an ext4 image of its size each"


def _writable(state: Path) -> str:
    """Test by writing to the directory or, if it doesn't exist yet, to the parent in which it would be created."""
    place = next(path for path in (state, *state.parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".agentos-doctor-", dir=place):
            return "writable" if place == state else f"isn't there, can be made in {place}"
    except OSError as error:
        return f"not writable: {error.strerror}: use agentos run --state-dir DIR"
