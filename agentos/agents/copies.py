"""A script out of an agent's own jail, copied for the jail of a child that is to run it.

What the agent has there it may change, or swap for something else, at any moment: it is opened beneath its own root
without following links, and what was read then is what the child runs, in each of its lives.
"""

import contextlib
import ctypes
import os
import stat
import struct
import tempfile

from agentos_sdk.errors import BadRequest, NotFound, PermissionDenied

from .registry import Agent
from .spec import AgentSpec

MAX_SCRIPT = 4 << 20  # bytes
READABLE = ("/workspace", "/agent", "/tmp")
_OPENAT2 = 437
_BENEATH, _NO_MAGICLINKS, _NO_SYMLINKS = 0x08, 0x02, 0x04


def of_script(agent: Agent, path: str, runtime: str) -> str:
    """Copy the script at ``path`` in a living agent's jail; where the copy is. Blocks."""
    if not any(path.startswith(f"{place}/") for place in READABLE):
        raise PermissionDenied(f"script: {path} is a path of the host's, and {agent.name} has none of these")
    data = read(agent, path)
    directory = tempfile.mkdtemp(prefix="script-", dir=runtime)
    copy = os.path.join(directory, os.path.basename(path))
    with open(copy, "xb") as file:
        file.write(data)
    os.chmod(copy, 0o444)
    return copy


def discard(spec: AgentSpec) -> None:
    """Remove what was copied for an agent; its script is nobody else's but its children's, who end before it."""
    if spec.copied and spec.script is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(spec.script)
            os.rmdir(os.path.dirname(spec.script))


def read(agent: Agent, path: str) -> bytes:
    """What a regular file in an agent's jail has in it. Blocks; ``NotFound``, ``BadRequest`` for what is none."""
    program = agent.program
    ended = NotFound(f"script: {agent.name} has ended, and its files with it")
    if program is None or program.status is not None:
        raise ended
    proc = f"/proc/{program.program}"
    try:
        root = os.open(f"{proc}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Looked at afterwards: it may have ended, and its number be a stranger's by now.
            if os.stat(f"{proc}/ns/mnt").st_ino != program.observed.namespaces["mnt"]:
                raise ended
            fd = open_beneath(root, path.lstrip("/"))
        finally:
            os.close(root)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadRequest(f"script: {path} is no file")
            data = read_at_most(fd, MAX_SCRIPT + 1)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise NotFound(f"script: there is no file {path} in the jail of {agent.name}") from None
    except OSError as error:
        raise BadRequest(f"script: {path} can't be read: {error.strerror}") from None
    if len(data) > MAX_SCRIPT:
        raise BadRequest(f"script: {path} has more than {MAX_SCRIPT >> 20} MiB")
    return data


def read_at_most(fd: int, size: int) -> bytes:
    """The beginning of a file; what is appended meanwhile counts too."""
    data = b""
    while len(data) < size and (piece := os.read(fd, size - len(data))):
        data += piece
    return data


def open_beneath(root: int, path: str) -> int:
    """Open a file for reading by openat2(2), beneath a directory and without any link on the way."""
    how = struct.pack(
        "=3Q", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    fd = int(libc.syscall(ctypes.c_long(_OPENAT2), root, os.fsencode(path), how, ctypes.c_size_t(len(how))))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd
