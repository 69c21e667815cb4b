"""What a new process and the kernel say to each other on the control socket, one JSON object per packet.

::

    process            kernel
    born          →                 its pid comes with each message, as the kernel numbers it
                  ←    (names)      descriptors: its plan, its streams, what it binds or joins; they may be late,
                                    and a plan may come in parts
    below         →                 only who joined a sandbox: the child that goes on in its place, in its process group
                  ←    go           that one is known by a pidfd; it leaves the group. All this for each Descend
    listening     →                 the listener that it made on its loopback, where its plan says so
    found         →                 descriptors of the namespaces that nobody else could open, and of its file systems
                                    in memory, where it has any; before its limits hold
    confined      →                 every wall stands; the kernel looks at it from outside
                  ←    go
    (closed by exec)                the program runs

The names come one after the other with a zero byte between. Who joins a sandbox only to listen is ended after that.
At any point the process may say ``failed`` instead, with the step and the error, and ends.
A kernel that is gone closes the socket, and the process ends too.
"""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping

BORN, BELOW, FOUND, CONFINED, LISTENING = "born", "below", "found", "confined", "listening"
FAILED, GO = "failed", "go"
GROUP = "group "  # with which the names of control groups begin
MAX_MESSAGE = 4096  # bytes
MAX_GIFT = 1 << 15  # bytes of names
MAX_FDS = 64  # descriptors at once
_MAX_TEXT = 1900  # bytes, of which a failure has two
NOTHING: Mapping[str, int] = {}
EX_SETUP = 125  # the exit status of a process that didn't become a program


class KernelGone(Exception):
    """The other end of the control socket is closed."""


def say(control: socket.socket, what: str, fds: Mapping[str, int] = NOTHING) -> None:
    """Say it, and hand these descriptors over with it."""
    # Made of as little as possible: each object that a new process touches is copied for it.
    names = ", ".join([f'"{name}"' for name in fds])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"={len(fds)}i", *fds.values()))] if fds else []
    control.sendmsg([f'{{"what": "{what}", "fds": [{names}]}}'.encode()], rights)


def await_gift(control: socket.socket) -> dict[str, int]:
    """What a new process is given, by name."""
    room = socket.CMSG_SPACE(MAX_FDS * 4)
    data, ancillary, _, _ = control.recvmsg(MAX_GIFT, room, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise KernelGone
    fds = [fd for _, _, rights in ancillary for fd in struct.unpack(f"={len(rights) // 4}i", rights)]
    return dict(zip(os.fsdecode(data).split("\0"), fds, strict=True))


def say_failed(control: socket.socket, step: str, error: BaseException) -> None:
    """Best effort: where the kernel is gone there is nobody to tell."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    reason = os.strerror(number) if number else f"{type(error).__name__}: {error}"
    about = error.filename if isinstance(error, OSError) else None
    text = f"{os.fsdecode(about)}: {reason}" if about else reason
    with contextlib.suppress(OSError):
        control.send(json.dumps({"what": FAILED, **failure(step, number, text)}).encode())


def failure(step: str, number: int, text: str) -> dict[str, object]:
    """What failed, cut to what a message holds: either text may name a path as long as paths can be."""
    return {"step": _cut(step), "errno": number, "text": _cut(text)}


def _cut(text: str) -> str:
    """How it begins and ends, in its share of a message: JSON makes up to twelve bytes of a character."""
    cut, half = text, _MAX_TEXT // 2
    while len(json.dumps(cut)) > _MAX_TEXT:
        cut, half = f"{text[:half]}...{text[-half:]}", half * 3 // 4
    return cut


def await_go(control: socket.socket) -> None:
    if not control.recv(MAX_MESSAGE):
        raise KernelGone
