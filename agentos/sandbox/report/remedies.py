"""Remedies: which host setting to change after a refused step, from the step, the errno and our surroundings.

Whether a layer works is found out by trying it. This module only explains a refusal, and returns nothing if it would
have to guess.
"""

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_ENOUGH_NAMESPACES = 10_000  # namespaces
_EMPTY_IN_PROC = ("/proc/sys/fs/binfmt_misc",)  # a mount there hides nothing
APPARMOR_PROFILE = "agentos-python"
APPARMOR_PROFILE_FILE = f"/etc/apparmor.d/{APPARMOR_PROFILE}"
APPARMOR_REMEDY = (
    f"install the AppArmor profile that `agentos doctor` prints as {APPARMOR_PROFILE_FILE}, or "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
)
MOUNT_CALLS = "clone3, unshare, mount, umount2, pivot_root, open_tree, move_mount, mount_setattr"
SECCOMP_REMEDY = (
    f"the seccomp filter around this process, a container's perhaps, must allow {MOUNT_CALLS}: "
    "docker run --security-opt seccomp=unconfined, or a profile with these"
)
NO_OVERLAYFS_REMEDY = "modprobe overlay, or a kernel built with CONFIG_OVERLAY_FS"
OVERLAY_REMEDY = (
    "put the state directory (agentos run --state-dir DIR) on ext4, xfs or btrfs, or on a tmpfs of Linux 6.6 or later: "
    "not on an overlay, as a container's root is (give that a volume), nor on a network's"
)
LANDLOCK_CALLS = "landlock_create_ruleset, landlock_add_rule, landlock_restrict_self"


class Surroundings(Struct, frozen=True):
    """Host state that can prevent isolation: settings by name, and restrictions on this process."""

    uid: int
    settings: Mapping[str, str] = {}  # of /proc/sys, as sysctl names them
    filtered: bool = False  # by a seccomp filter
    apparmor: str = ""  # the profile that confines us, if any
    chroot: bool = False
    covered: tuple[str, ...] = ()  # mount points in /proc
    lsm: str = ""  # the active security modules
    ids: str = ""  # our user namespace's uid_map
    processes: str = ""  # the process limit of this user
    proc: bool = True  # /proc is there


def read_surroundings() -> Surroundings:
    """Read the surroundings of this process from /proc and /sys; unreadable files count as absent."""
    names = [f"user.max_{name}_namespaces" for name in NAMESPACES]
    names += ["kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns"]
    settings = {name: _read(f"/proc/sys/{name.replace('.', '/')}") for name in names}
    status = dict(line.split(":", 1) for line in _read("/proc/self/status").splitlines() if ":" in line)
    points = [line.split(" ")[4] for line in _read("/proc/self/mountinfo").splitlines()]
    apparmor = _read("/proc/self/attr/apparmor/current") or _read("/proc/self/attr/current")
    limits = _read("/proc/self/limits").splitlines()
    return Surroundings(
        uid=os.geteuid(),
        settings={name: value for name, value in settings.items() if value},
        filtered=status.get("Seccomp", "").strip() == "2",
        apparmor=apparmor if "(" in apparmor else "",  # "docker-default (enforce)"; other modules have other labels
        chroot=bool(points) and "/" not in points,
        covered=tuple(path for path in points if path.startswith("/proc/") and path not in _EMPTY_IN_PROC),
        lsm=_read("/sys/kernel/security/lsm"),
        ids=" ".join(_read("/proc/self/uid_map").split()),
        processes=next((line[26:].split()[0] for line in limits if line.startswith("Max processes")), ""),
        proc=os.path.exists("/proc/self"),
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def find_remedy(step: str, text: str, error: int, surroundings: Surroundings) -> str:
    """Return what to change so that a step which failed with ``error`` works; empty if unknown."""
    if not surroundings.proc:
        return "mount proc at /proc"
    if step.startswith("MountOverlay"):
        return NO_OVERLAYFS_REMEDY if error == errno.ENODEV else OVERLAY_REMEDY if error == errno.EINVAL else ""
    match error:
        case errno.ENOSPC | errno.EUSERS if step == "Clone":
            return _namespace_limit_remedy(surroundings)
        case errno.EAGAIN:
            now = surroundings.processes
            return f"let this user have more processes (ulimit -u, now {now}), and its container or unit"
        case errno.ENOSYS | errno.EOPNOTSUPP if step == "Landlock":
            return _landlock_remedy(error, surroundings)
        case errno.EPERM if step == "Landlock" and surroundings.filtered:
            return _landlock_remedy(error, surroundings)
        case errno.ENOSYS:
            return SECCOMP_REMEDY if surroundings.filtered else "a newer kernel: Linux 5.14 or later"
        case errno.EPERM | errno.EACCES:
            return _permission_remedy(step, text, error, surroundings)
    return ""


def _namespace_limit_remedy(surroundings: Surroundings) -> str:
    closed = [name for name in NAMESPACES if surroundings.settings.get(f"user.max_{name}_namespaces") == "0"]
    if closed:
        return "sysctl " + " ".join(f"user.max_{name}_namespaces={_ENOUGH_NAMESPACES}" for name in closed)
    return "this user has reached its limit of namespaces, here or outside this container: raise sysctl user.max_*"


def _landlock_remedy(error: int, surroundings: Surroundings) -> str:
    if error == errno.EOPNOTSUPP:
        return f"boot with landlock in the kernel's parameter lsm= (now {surroundings.lsm or 'unknown'})"
    if surroundings.filtered:
        return f"if this Linux has Landlock, the seccomp filter around this process must allow {LANDLOCK_CALLS}"
    return "a kernel with it: Linux 5.13 or later, built with CONFIG_SECURITY_LANDLOCK"


def _permission_remedy(step: str, text: str, error: int, surroundings: Surroundings) -> str:
    if "_map:" in text:
        return f"give this user namespace more ids (its uid_map is {surroundings.ids}), or run as an ordinary user"
    if surroundings.uid != 0 and surroundings.settings.get("kernel.unprivileged_userns_clone") == "0":
        return "sysctl kernel.unprivileged_userns_clone=1"
    if surroundings.uid != 0 and surroundings.settings.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return APPARMOR_REMEDY
    if step == "Clone" and surroundings.chroot:
        return "don't run in a chroot: Linux refuses user namespaces in it; use a container or pivot_root"
    if step.startswith("MountProc") and surroundings.covered:
        covered = _shorten_list(surroundings.covered)
        return (
            f"nothing may be mounted over paths in /proc, as container runtimes do ({covered}): "
            "docker run --security-opt systempaths=unconfined, podman run --security-opt unmask=ALL"
        )
    if error == errno.EACCES and surroundings.apparmor and not surroundings.apparmor.startswith("unconfined"):
        return f"the AppArmor profile {surroundings.apparmor} denies it: docker run --security-opt apparmor=unconfined"
    return SECCOMP_REMEDY if surroundings.filtered else ""


def _shorten_list(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")


def apparmor_profile() -> str:
    """Return an AppArmor profile that lets this interpreter make user namespaces and restricts nothing."""
    return f"""\
abi <abi/4.0>,
include <tunables/global>

profile {APPARMOR_PROFILE} {os.path.realpath(sys.executable)} flags=(unconfined) {{
  userns,
  include if exists <local/{APPARMOR_PROFILE}>
}}
"""
