"""The process that clones: single-threaded, with an empty environment, one socket, and no secret to pass on.

Run as ``python -I -S -c ... SOCKET_FD KERNEL_PID``. One packet asks, with descriptors, and one answers, or tells the
error::

    clone: flags                        its control socket, and of cgroup v2 a directory to be born in
                                   →    pid; a pidfd
    dress: pid, size                    the plan; so many bytes of it are the zygote's to read
                                   →    targets; a source for each, which who is in a namespace can't open itself
    remains                             nothing is answered: what is to be removed when the kernel has been killed

Who is cloned waits for the kernel's word: it may be asked for long before it is known what is to become of it. Its
parent is not this process but the one that asked: nobody's life depends on the zygote's, which outlives the kernel only
to remove what remains.
"""

import array
import contextlib
import gc
import json
import os
import socket
import sys
from typing import Any, NoReturn

from agentos.sandbox import steps as s

from . import identity, janitor, libc, messages, script, sources, walk

NAME = "agentos-zygote"  # what ps calls it, and who waits to become a program
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
    libc.set_name(NAME)
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
                answer, new = _clone(request, fds) if "clone" in request else _dress(request, fds)
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


def _clone(request: dict[str, Any], fds: list[int]) -> tuple[dict[str, object], list[int]]:
    pid, pidfd = libc.clone(request["clone"], fds[1] if len(fds) > 1 else None)
    if pid == 0:
        _child(fds[0])
    return {"pid": pid}, [pidfd]


def _dress(request: dict[str, Any], fds: list[int]) -> tuple[dict[str, object], list[int]]:
    steps = s.decode(os.pread(fds[0], request["size"], 0))
    clone = steps[0]
    assert isinstance(clone, s.Clone), "a plan with namespaces of its own begins with Clone"
    try:
        trees = sources.detach(steps)
    except sources.SourceFailed as failed:
        return _failure(s.describe(failed.step), failed.error), []
    try:
        identity.write_maps(request["dress"], clone)
    except OSError:
        sources.close(trees)
        raise
    return {"targets": list(trees)}, list(trees.values())


def _child(control: int) -> NoReturn:
    try:
        walk.become(control)
    except script.Ready:
        raise
    except BaseException:
        os._exit(messages.EX_SETUP)
