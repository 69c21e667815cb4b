"""Zygote: the process that clones. Single-threaded, with an empty environment, one socket, and no secret to inherit.

Run as ``python -I -S -c ... SOCKET_FD KERNEL_PID``. One packet is a request, with descriptors; one packet is its
answer, or the error::

    clone: flags                        its control socket, and optionally a cgroup v2 directory to clone it into
                                   →    pid; a pidfd
    clone: flags, size                  its control socket, the plan, and optionally such a directory: clone and
                                        prepare at once
                                   →    pid, targets; a pidfd and the sources
    prepare: pid, size                  the plan; the zygote reads its first ``size`` bytes
                                   →    targets; a source for each, which a process in a namespace can't open itself
    cleanup                             no answer: what to remove when the kernel has been killed
    sample                              no answer: the memory to copy ahead in processes that wait

A cloned process waits for a message from the kernel: it may be cloned long before its plan is known. Its parent is the
kernel and not the zygote, so no process depends on the zygote's life. The zygote outlives the kernel only to remove
what remains.
"""

import array
import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from agentos.sandbox import steps as s
from agentos.sandbox.encoded_steps import decode

from . import identity, janitor, libc, memory, messages, sources, walk
from .programs import script

NAME = "agentos-zygote"  # as shown by ps, for the zygote and processes that wait for a plan
MAX_REQUEST = 1 << 15  # bytes
_MAX_FDS = 16


def main() -> None:
    """Serve until the kernel closes its end. In a child that has a script to run, run that script."""
    kernel = int(sys.argv[2])
    try:
        cleanup = _serve_forever(socket.socket(fileno=int(sys.argv[1])), kernel)
        if janitor.wait_for_parent_exit(kernel):
            janitor.kill_and_remove(cleanup)
        return
    except script.Ready as ready:
        step, source = ready.step, ready.source
    script.run(step, source)


def _serve_forever(channel: socket.socket, kernel: int) -> janitor.Cleanup:
    """Serve until the kernel closes its end of the channel; returns what to clean up after it."""
    libc.set_name(NAME)
    cleanup, namespaces = janitor.Cleanup(), sources.Namespaces()
    if not (package := channel.recv(MAX_REQUEST)):
        return cleanup
    script.preload(os.fsdecode(package))
    gc.freeze()  # a collection in a child would touch, and so copy, memory that it shares with us
    _send(channel, b"ready")
    while received := _receive(channel):
        request, fds = received
        if "cleanup" in request:
            cleanup = janitor.Cleanup(**request["cleanup"])
            continue
        if "sample" in request:
            memory.set_ranges(request["sample"])
            continue
        try:
            if "clone" in request:
                answer, new = _clone(request, fds, namespaces)
            else:
                answer, new = _prepare_mounts(request["prepare"], fds[0], request["size"], namespaces)
        except OSError as error:
            answer, new = _failure("Clone", error), []
        _send(channel, json.dumps(answer).encode(), new)
        for fd in (*fds, *new):
            os.close(fd)
        if "clone" in request and "size" in request:  # of a jail that is built ahead
            namespaces.build_ahead()
    return cleanup


def _send(channel: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # the kernel has died; its last requests follow
        socket.send_fds(channel, [data], fds)


def _failure(step: str, error: OSError) -> dict[str, object]:
    return messages.failure_fields(step, error.errno or 0, f"{error.filename}: {error.strerror}")


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    space = socket.CMSG_SPACE(_MAX_FDS * 4)
    try:
        data, ancillary, _, _ = channel.recvmsg(MAX_REQUEST, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # once, if the kernel died with an unread answer; what it had sent comes afterwards
        data, ancillary, _, _ = channel.recvmsg(MAX_REQUEST, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    return (json.loads(data), list(fds)) if data else None


def _clone(
    request: dict[str, Any], fds: list[int], namespaces: sources.Namespaces
) -> tuple[dict[str, object], list[int]]:
    is_prepared = "size" in request
    control, *more = fds
    plan = more.pop(0) if is_prepared else None
    pid, pidfd = libc.clone(request["clone"], more[0] if more else None)
    if pid == 0:
        _run_child(control, request["clone"])
    if plan is None:
        return {"pid": pid}, [pidfd]
    try:
        answer, trees = _prepare_mounts(pid, plan, request["size"], namespaces)
    except OSError:
        os.close(pidfd)
        raise
    if "errno" in answer:
        os.close(pidfd)
        return answer, []
    return {"pid": pid, **answer}, [pidfd, *trees]


def _prepare_mounts(
    pid: int, plan: int, size: int, namespaces: sources.Namespaces
) -> tuple[dict[str, object], list[int]]:
    steps = decode(os.pread(plan, size, 0))
    clone = steps[0]
    assert isinstance(clone, s.Clone), "a plan with namespaces of its own begins with Clone"
    try:
        trees = sources.detach_all(steps, namespaces)
    except sources.SourceFailed as failed:
        return _failure(s.describe(failed.step), failed.error), []
    try:
        if clone.uid_map:
            identity.write_maps(pid, clone)
    except OSError:
        sources.close_trees(trees)
        raise
    return {"targets": list(trees)}, list(trees.values())


def _run_child(control: int, flags: int) -> NoReturn:
    try:
        walk.run_plan(control, has_init=bool(flags & walk.NEWPID))
    except script.Ready:
        raise
    except BaseException:
        os._exit(messages.EX_SETUP)
