"""Enter a running sandbox: join its namespaces, then continue as PID 1 of a PID namespace below its own.

The joining process can't be seen in the sandbox: it stays in the zygote's PID namespace, so it has no pid there. Its
child and the child of that are visible from their first moment. By then they have the sandbox's uid, files and
network and aren't dumpable: their /proc entries show nothing of the host, and their memory and descriptors can't be
accessed.
"""

import os
import socket
import sys
from collections.abc import Mapping

from agentos.sandbox import steps as s

from . import libc, messages
from .mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC

_NEWNS, _NEWPID = 0x20000, 0x20000000
_CLONE_FLAGS = {  # by CLONE_NEW*; user first, as it gives the capabilities for the others; mnt last, as it changes "/"
    "user": 0x10000000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "net": 0x40000000,
    "pid": _NEWPID,
    "mnt": _NEWNS,
}


def join(namespaces: Mapping[str, int]) -> None:
    """Join these namespaces, given by descriptors, which are closed."""
    if "user" not in namespaces:
        raise ValueError("there is no sandbox to join")
    libc.set_signal_mask(blocked=True)
    sys.meta_path.clear()  # a module's path may soon resolve to the program's files
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    for name in sorted(namespaces, key=list(_CLONE_FLAGS).index):
        libc.setns(namespaces[name], _CLONE_FLAGS[name])
        os.close(namespaces[name])


def descend(step: s.Descend, control: socket.socket) -> None:
    """Continue in a child's child once the kernel has a pidfd of it and its namespaces; the calling process exits.

    Two clones are needed: only a process in a PID namespace can make one below it, and a process enters a PID
    namespace only by being cloned into it.
    """
    libc.prctl(libc.PR_SET_DUMPABLE, 0)  # setresuid may have set it (sysctl fs.suid_dumpable)
    if not libc.clone_two_below(step.flags):
        os._exit(0)
    libc.mount("none", "/", None, MS_REC | MS_PRIVATE)
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | (MS_RDONLY if step.read_only else 0)
    libc.mount("proc", step.proc, "proc", flags, "subset=pid")
    place = f"{step.proc}/self/ns"  # no other process may open these: this one isn't dumpable
    names = [name for name in _CLONE_FLAGS if os.path.exists(f"{place}/{name}")]
    namespaces = {name: os.open(f"{place}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names}
    messages.send(control, messages.BELOW, namespaces)
    for fd in namespaces.values():
        os.close(fd)
    messages.wait_for_go(control)
    os.setsid()
