"""Into a sandbox that runs already: join its namespaces, then go on as the PID 1 of a namespace below its own.

Who joins can't be seen in there: it stays in the zygote's PID namespace, where nobody inside has a name for it. Who
goes on below can be seen from its first moment. By then it has the sandbox's user, files and network and isn't
dumpable, so that there is nothing of the host's to look up in its /proc entry, and no way into its memory and
descriptors.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping

from agentos.sandbox import steps as s

from . import libc, messages
from .mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC

_NEWNS, _NEWPID = 0x20000, 0x20000000
_KINDS = {  # by CLONE_NEW*; the user namespace gives the capabilities for the others, and "/" is the mounts'
    "user": 0x10000000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "net": 0x40000000,
    "pid": _NEWPID,
    "mnt": _NEWNS,
}


def join(namespaces: Mapping[str, int]) -> None:
    """Join these, by descriptors, which are closed."""
    if "user" not in namespaces:
        raise ValueError("there is no sandbox to join")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sys.meta_path.clear()  # what lies at a module's path may be the program's soon
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    for name in sorted(namespaces, key=list(_KINDS).index):
        libc.setns(namespaces[name], _KINDS[name])
        os.close(namespaces[name])


def descend(step: s.Descend, control: socket.socket) -> None:
    """Return in a child, when the kernel knows it; who calls this ends.

    It takes two of them: only who is in a PID namespace can make one below it, and nobody gets into one but by birth.
    """
    libc.prctl(libc.PR_SET_DUMPABLE, 0)  # taking an identity may have set it (sysctl fs.suid_dumpable)
    pid, _ = libc.clone(step.flags)
    if pid != 0:
        os._exit(0)
    messages.say(control, messages.BELOW)
    messages.await_go(control)
    os.setsid()


def show_own(step: s.OwnProc) -> dict[str, int]:
    """Mount a /proc over that of the PID namespace above; our namespaces, as descriptors."""
    libc.mount("none", "/", None, MS_REC | MS_PRIVATE)
    libc.mount("proc", step.target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid")
    place = f"{step.target}/self/ns"  # nobody else may open these: we aren't dumpable
    names = [name for name in _KINDS if os.path.exists(f"{place}/{name}")]
    return {name: os.open(f"{place}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names}


def listen(step: s.Listen, control: socket.socket) -> None:
    """Hand a listener over."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", step.port))
        listener.listen()
        messages.say(control, messages.LISTENING, {"listener": listener.fileno()})
