"""Where the command line lists the links to a running dashboard and ends them: a Unix socket in ``dashboard/``.

Only the kernel's user and root can enter that directory. A program sends one :class:`Ask` as JSON and ends what it
sends; the answer is a JSON object, with ``links`` and whether the one to revoke was ``found``.
"""

import errno
import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import trio

from agentos.private_files import hold_directory

from .links import DIRECTORY

SOCKET = "links.socket"
MAX_ASK = 1 << 10  # bytes
SECONDS = 10.0  # for a program and the kernel to answer each other


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """List the links, after ending ``revoke``."""

    revoke: str | None = None


Answer = Callable[[Ask], Awaitable[dict[str, Any]]]
decode = msgspec.json.Decoder(Ask).decode


def open_control(place: Path) -> socket.socket:
    """The listening socket in ``dashboard/``. Blocks; raises ``OSError``."""
    path = place / SOCKET
    path.unlink(missing_ok=True)  # of a former run
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


async def serve_control(listener: socket.socket, answer: Answer) -> None:
    """Answer programs until cancelled; one that says something else is left without an answer."""

    async def serve(stream: trio.SocketStream) -> None:
        with trio.move_on_after(SECONDS), suppress(trio.BrokenResourceError, msgspec.DecodeError, OSError):
            said = b""
            while len(said) < MAX_ASK and (more := await stream.receive_some(MAX_ASK)):
                said += more
            await stream.send_all(msgspec.json.encode(await answer(decode(said))))
        await trio.aclose_forcefully(stream)

    await trio.serve_listeners(serve, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))])


def ask_links(state_dir: Path, revoke: str | None = None) -> dict[str, Any] | None:
    """Ask the kernel with this state directory; None if it serves no dashboard. Blocks; raises ``OSError``."""
    if not os.path.lexists(state_dir / DIRECTORY / SOCKET):
        return None
    with hold_directory(state_dir / DIRECTORY) as place, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SECONDS)
        try:
            sock.connect(str(place / SOCKET))
        except ConnectionRefusedError:  # left by a kernel that was killed
            return None
        sock.sendall(msgspec.json.encode(Ask(revoke)))
        sock.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    if not said:
        raise OSError(errno.ETIMEDOUT, "the kernel doesn't answer")
    found: dict[str, Any] = json.loads(said)
    return found
