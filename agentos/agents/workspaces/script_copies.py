"""Copies of scripts from an agent's jail, for a child that runs one of them.

The agent can change or replace its files at any moment. So a script is opened beneath the agent's root without
following symlinks, the decision is about its digest, and the child runs a copy with that digest in each of its lives.
"""

import contextlib
import hashlib
import os
import stat
import tempfile

from msgspec import Struct

from agentos.agents.jail.root_access import Ended, root_of
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec
from agentos.sandbox.files import openat2
from agentos_sdk.errors import BadRequest, NotFound, PermissionDenied

MAX_SCRIPT = 4 << 20  # bytes
CHANGED = "changed since it was looked at"


class JailScript(Struct, frozen=True):
    """A script in a running agent's jail, with its SHA-256 when it was looked at."""

    agent: Agent
    path: str
    digest: bytes

    @classmethod
    def look_at(cls, agent: Agent, path: str) -> "JailScript":
        """Raises ``NotFound`` or ``BadRequest``. Blocks."""
        return cls(agent, path, hashlib.sha256(read(agent, path)).digest())

    def copy(self, runtime: str) -> str:
        """Copy the script; returns the path of the copy. Raises ``PermissionDenied`` if it has changed. Blocks."""
        data = read(self.agent, self.path)
        if hashlib.sha256(data).digest() != self.digest:
            raise PermissionDenied(f"script: {CHANGED}")
        return write(os.path.basename(self.path), data, runtime)


def write(name: str, data: bytes, runtime: str) -> str:
    """A script of that content for one agent; returns its path. Blocks."""
    copy = os.path.join(tempfile.mkdtemp(prefix="script-", dir=runtime), name)
    with open(copy, "xb") as file:
        file.write(data)
    os.chmod(copy, 0o444)
    return copy


def remove(copy: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(copy)
        os.rmdir(os.path.dirname(copy))


def discard(spec: AgentSpec) -> None:
    """Remove the script copied for an agent. Only its children share this copy, and they end before the agent."""
    if spec.copied and spec.script is not None:
        remove(spec.script)


def read(agent: Agent, path: str) -> bytes:
    """Read a regular file in an agent's jail. Blocks. Raises ``NotFound``, or ``BadRequest`` for other types."""
    flags, resolve = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK, openat2.WITHIN | openat2.NO_LINKS
    try:
        if agent.life.program is None:
            raise Ended
        with root_of(agent.life.program) as root, openat2.opened(root, path.lstrip("/"), flags, resolve) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadRequest(f"script: {path} is no file")
            data = read_at_most(fd, MAX_SCRIPT + 1)
    except Ended:
        raise NotFound(f"script: {agent.name} has ended, and its files with it") from None
    except FileNotFoundError:
        raise NotFound(f"script: there is no file {path} in the jail of {agent.name}") from None
    except OSError as error:
        raise BadRequest(f"script: {path} can't be read: {error.strerror}") from None
    if len(data) > MAX_SCRIPT:
        raise BadRequest(f"script: {path} has more than {MAX_SCRIPT >> 20} MiB")
    return data


def read_at_most(fd: int, size: int) -> bytes:
    """Read up to ``size`` bytes from the start of a file, including data appended meanwhile."""
    data = b""
    while len(data) < size and (piece := os.read(fd, size - len(data))):
        data += piece
    return data
