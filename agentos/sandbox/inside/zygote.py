"""The process that clones: single-threaded, with an empty environment, one socket, and no secret to pass on.

Run as ``python -I -S -c ... SOCKET_FD KERNEL_PID``. One packet asks for one clone, with these descriptors: the plan,
the control socket, the pipe for the shim's last word, stdout, stderr and, where the request says so, a cgroup's
directory. One packet answers: the pid, with a pidfd and the new namespaces in the order of ``NAMESPACES``, or the
error. The child's parent is not this process but the one that asked: nobody's life depends on the zygote's.
"""

import array
import gc
import json
import os
import signal
import socket
import sys
from typing import NoReturn

from agentos.sandbox import steps as s

from . import identity, libc, messages, walk

NAMESPACES = ("user", "pid", "mnt", "net", "uts", "ipc")
MAX_REQUEST = 4096  # bytes
_MAX_FDS = 8


def main() -> None:
    """Serve until the kernel closes its end."""
    channel, kernel = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != kernel:
        return
    gc.collect()
    gc.freeze()  # no collection in a child touches, and thereby copies, what it shares with us
    channel.send(b"ready")
    while request := _receive(channel):
        data, fds = request
        try:
            answer, new = _serve(data, fds)
        except OSError as error:
            answer, new = {"step": "Clone", "errno": error.errno, "text": f"{error.filename}: {error.strerror}"}, []
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", new))] if new else []
        channel.sendmsg([json.dumps(answer).encode()], rights)
        for fd in (*fds, *new):
            os.close(fd)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]] | None:
    space = socket.CMSG_SPACE(_MAX_FDS * 4)
    data, ancillary, _, _ = channel.recvmsg(MAX_REQUEST, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return (data, list(fds)) if data else None


def _serve(data: bytes, fds: list[int]) -> tuple[dict[str, object], list[int]]:
    request = json.loads(data)
    with open(os.dup(fds[0]), "rb") as file:
        file.seek(0)
        steps = s.decode(file.read())
    clone = steps[0]
    assert isinstance(clone, s.Clone), "a plan begins with Clone"
    pid, pidfd = libc.clone(clone.flags, fds[5] if request["cgroup"] else None)
    if pid == 0:
        _child(steps, walk.Streams(*fds[1:5]))
    new = [pidfd]
    try:
        identity.write_maps(pid, clone)
        # Now, while it waits: later it is not dumpable, and a kernel without root may not open these.
        new += [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        # Whoever asked has to wait for it, and is told its pid for that.
        problem = {"step": "Clone", "errno": error.errno, "text": f"{error.filename}: {error.strerror}"}
        for fd in new[1:]:
            os.close(fd)
        return {"pid": pid, **problem}, new[:1]
    return {"pid": pid}, new


def _child(steps: tuple[s.Step, ...], streams: walk.Streams) -> NoReturn:
    try:
        walk.become(steps, streams)
    finally:
        os._exit(messages.EX_SETUP)
