"""The process that clones: single-threaded, with an empty environment, one socket, and no secret to pass on.

Run as ``python -I -S -c ... SOCKET_FD KERNEL_PID``. One packet asks for one clone, with these descriptors: the plan,
the control socket, the pipe for the shim's last word, stdout, stderr and, where the request says so, a cgroup's
directory and the namespaces to join. One packet answers: the pid, with a pidfd and the new namespaces in the order of
``NAMESPACES`` (none for who joins some), or the error. The child's parent is not this process but the one that asked:
nobody's life depends on the zygote's.

A packet with ``remains`` asks for nothing, and isn't answered: it says what is to be removed when the kernel has been
killed. The zygote outlives it for that.
"""

import array
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from agentos.sandbox import steps as s

from . import identity, janitor, libc, messages, script, sources, walk

NAMESPACES = ("user", "pid", "mnt", "net", "uts", "ipc")
MAX_REQUEST = 1 << 15  # bytes
_MAX_FDS = 16


def main() -> None:
    """Serve until the kernel closes its end, and in a child that has a script to run, run that."""
    kernel = int(sys.argv[2])
    try:
        remains = _serve_forever(socket.socket(fileno=int(sys.argv[1])), kernel)
        if janitor.has_gone(kernel):
            janitor.clean(remains)
        return
    except script.Ready as ready:
        step, source = ready.step, ready.source
    script.run(step, source)


def _serve_forever(channel: socket.socket, kernel: int) -> janitor.Remains:
    """Until the kernel's end of the channel is closed; what it has left then."""
    remains = janitor.Remains()
    if not (package := channel.recv(MAX_REQUEST)):
        return remains
    script.preload(os.fsdecode(package))
    gc.disable()
    gc.collect()
    gc.freeze()  # no collection in a child touches, and thereby copies, what it shares with us
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it died with something unread
        channel.send(b"ready")
        while received := _receive(channel):
            request, fds = received
            if "remains" in request:
                remains = janitor.Remains(**request["remains"])
                continue
            try:
                answer, new = _serve(request, fds)
            except OSError as error:
                answer, new = _failure("Clone", error), []
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", new))] if new else []
            channel.sendmsg([json.dumps(answer).encode()], rights)
            for fd in (*fds, *new):
                os.close(fd)
    return remains


def _failure(step: str, error: OSError) -> dict[str, object]:
    return messages.failure(step, error.errno or 0, f"{error.filename}: {error.strerror}")


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    space = socket.CMSG_SPACE(_MAX_FDS * 4)
    data, ancillary, _, _ = channel.recvmsg(MAX_REQUEST, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return (json.loads(data), list(fds)) if data else None


def _serve(request: dict[str, Any], fds: list[int]) -> tuple[dict[str, object], list[int]]:
    steps = s.decode(os.pread(fds[0], request["ours"], 0))
    cgroup = fds[5] if request["cgroup"] else None
    clone = steps[0]
    if isinstance(clone, s.Join):
        pid, pidfd = libc.clone(0, cgroup)
        if pid == 0:
            names = request["join"]
            _child(request["ours"], fds, {}, dict(zip(names, fds[len(fds) - len(names) :], strict=True)))
        return {"pid": pid}, [pidfd]
    assert isinstance(clone, s.Clone), "a plan begins with Clone or Join"
    try:
        trees = sources.detach(steps)
    except sources.SourceFailed as failed:
        return _failure(s.describe(failed.step), failed.error), []
    try:
        pid, pidfd = libc.clone(clone.flags, cgroup)
        if pid == 0:
            _child(request["ours"], fds, trees, {})
    finally:
        sources.close(trees)
    new = [pidfd]
    try:
        if clone.flags:  # without walls there is no user namespace that needs them
            identity.write_maps(pid, clone)
        # Now, while it waits: later it is not dumpable, and a kernel without root may not open these.
        new += [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        # Whoever asked has to wait for it, and is told its pid for that.
        for fd in new[1:]:
            os.close(fd)
        return {"pid": pid, **_failure("Clone", error)}, new[:1]
    return {"pid": pid}, new


def _child(start: int, fds: list[int], trees: sources.Trees, namespaces: Mapping[str, int]) -> NoReturn:
    """``start`` is where the plan begins that only this process may know: it has an environment in it."""
    try:
        steps = s.decode(os.pread(fds[0], os.fstat(fds[0]).st_size, start))
        walk.become(steps, walk.Streams(*fds[1:5]), trees, namespaces)
    except script.Ready:
        raise
    except BaseException:
        os._exit(messages.EX_SETUP)
