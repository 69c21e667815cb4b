"""Messages between a new process and the kernel on the control socket, one JSON object per packet.

::

    process            kernel
    born          →                 each message carries the sender's pid, as the kernel numbers it
                  ←    (names)      descriptors: its plan, its pipes, its sources or namespaces to join; may come late,
                                    and a plan may come in parts
    below         →                 only if it joined a sandbox: from the descendant that continues in its place, in
                                    its process group; with descriptors of its namespaces
                  ←    go           once the kernel has its pidfd; it leaves the group
    listening     →                 the sockets that it bound in its network, if its plan has any; maybe repeatedly
    found         →                 descriptors of namespaces that no other process could open, and of its tmpfs
                                    mounts, if any; before its resource limits apply
    confined      →                 the program, or the PID 1 that will start it if it joined a sandbox, is fully
                                    confined; the kernel inspects it from outside
                  ←    go
    (closed)                        the program runs

The names are separated by a zero byte. A process that joined a sandbox only to listen is killed after that.
At any point the process may send ``failed`` instead, with the step and the error, and exit.
When the kernel dies, its end of the socket closes, and the process exits too.
"""

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence

from .programs.shebang import CannotExecute

BORN, BELOW, FOUND, CONFINED, LISTENING = "born", "below", "found", "confined", "listening"
FAILED, GO = "failed", "go"
CGROUP_PREFIX = "group "  # prefix of the names of cgroups
SOCKET_PREFIX = "socket "  # likewise of sockets that a process has bound
MAX_MESSAGE_BYTES = 4096  # bytes
MAX_NAMES_BYTES = 1 << 15  # bytes of names
MAX_FDS = 64  # descriptors per message
_MAX_TEXT_BYTES = 1900  # bytes; a failure has two texts
NO_FDS: Mapping[str, int] = {}
EX_SETUP = 125  # exit status of a process that failed before exec


class KernelGone(Exception):
    """The other end of the control socket is closed."""


def send(control: socket.socket, what: str, fds: Mapping[str, int] = NO_FDS) -> None:
    """Send a message with these descriptors."""
    # Avoids json and array: each object that a new process touches is copied.
    names = ", ".join([f'"{name}"' for name in fds])
    send_packet(control, f'{{"what": "{what}", "fds": [{names}]}}'.encode(), *fds.values())


def receive_fds(control: socket.socket) -> dict[str, int]:
    """Receive descriptors by name."""
    data, fds = receive_packet(control, MAX_NAMES_BYTES)
    return dict(zip(os.fsdecode(data).split("\0"), fds, strict=True))


def send_packet(peer: socket.socket, data: bytes, *fds: int) -> None:
    """Send data with descriptors."""
    peer.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"={len(fds)}i", *fds))] if fds else [])


def receive_packet(peer: socket.socket, size: int) -> tuple[bytes, Sequence[int]]:
    """Receive data of up to ``size`` bytes, and the descriptors that come with it."""
    data, ancillary, flags, _ = peer.recvmsg(size, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise KernelGone
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, [fd for _, _, rights in ancillary for fd in struct.unpack(f"={len(rights) // 4}i", rights)]


def send_failure(control: socket.socket, step: str, error: BaseException) -> None:
    """Report a failure; errors are ignored, as the kernel may be gone."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    reason = os.strerror(number) if number else f"{type(error).__name__}: {error}"
    if isinstance(error, CannotExecute):
        reason = str(error.strerror)
    about = error.filename if isinstance(error, OSError) else None
    text = f"{os.fsdecode(about)}: {reason}" if about else reason
    with contextlib.suppress(OSError):
        control.send(json.dumps({"what": FAILED, **failure_fields(step, number, text)}).encode())


def failure_fields(step: str, number: int, text: str) -> dict[str, object]:
    """Return the fields of a failure, shortened to fit a message: either text may contain a path of maximum length."""
    return {"step": _shorten(step), "errno": number, "text": _shorten(text)}


def _shorten(text: str) -> str:
    """Shorten a text to its start and end: JSON needs up to twelve bytes for a character."""
    cut, half = text, _MAX_TEXT_BYTES // 2
    while len(json.dumps(cut)) > _MAX_TEXT_BYTES:
        cut, half = f"{text[:half]}...{text[-half:]}", half * 3 // 4
    return cut


def wait_for_go(control: socket.socket) -> None:
    if not control.recv(MAX_MESSAGE_BYTES):
        raise KernelGone
