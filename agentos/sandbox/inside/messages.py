"""What a new process and the kernel say to each other on the control socket, one JSON object per packet.

::

    process            kernel
    born          →                 its pid comes with each message, as the kernel numbers it
                  ←    go           it was put into its cgroup
    below         →                 only who joined a sandbox: the child that goes on in its place, in its process group
                  ←    go           that one is known by a pidfd; it leaves the group. All this for each Descend
    confined      →                 every wall stands; the kernel looks at it from outside. With it come descriptors of
                                    the namespaces that nobody else could open
                  ←    go
    (closed by exec)                the program runs

Who joins a sandbox only to listen says ``listening`` after that first ``go``, with the socket, and ends. At any point
the process may say ``failed`` instead, with the step and the error, and ends. A kernel that is gone closes the socket,
and the process ends too.
"""

import array
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

BORN, BELOW, CONFINED, LISTENING, FAILED, GO = "born", "below", "confined", "listening", "failed", "go"
MAX_MESSAGE = 4096  # bytes
EX_SETUP = 125  # the exit status of a process that didn't become a program


class KernelGone(Exception):
    """The other end of the control socket is closed."""


def say(control: socket.socket, what: str, fds: Sequence[int] = (), **fields: Any) -> None:
    """Say it, and hand these descriptors over with it."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    control.sendmsg([json.dumps({"what": what, **fields}).encode()], rights)


def say_failed(control: socket.socket, step: str, error: BaseException) -> None:
    """Best effort: where the kernel is gone there is nobody to tell."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    reason = os.strerror(number) if number else f"{type(error).__name__}: {error}"
    about = error.filename if isinstance(error, OSError) else None
    text = f"{os.fsdecode(about)}: {reason}" if about else reason
    with contextlib.suppress(OSError):
        say(control, FAILED, step=step, errno=number, text=text[:1000])


def await_go(control: socket.socket) -> None:
    if not control.recv(MAX_MESSAGE):
        raise KernelGone
