"""The files that a command names, for a person who must approve it: which exist, and which the agent can change."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from hashlib import sha256

from attrs import define, field

from agentos.agents.jail.root_access import Ended, root_of
from agentos.agents.registry import Agent
from agentos.sandbox.files import openat2
from agentos.services.files.as_user import Identity, acting_as
from agentos.services.files.regular_file import check_regular_file, reopen
from agentos.services.files.resolve import open_host_root
from agentos_sdk.errors import CallError

MAX_FILE_BYTES = 4 << 20  # bytes of a file that are hashed; of a larger one the change time stands for its content
MAX_TOTAL_BYTES = 32 << 20


@define
class NamedFiles:
    """Files below ``root``, which is a directory (O_PATH), accessed with the uid and gid of ``identity``."""

    root: int
    identity: Identity | None
    _left: int = field(default=MAX_TOTAL_BYTES, init=False)

    def is_changeable(self, path: str) -> bool:
        """Whether there is a file or directory at this absolute path that the agent can change or replace."""
        with acting_as(self.identity):
            if not self._exists(path):
                return False
            return any(self._is_writable(place) for place in _places(path))

    def digest(self, paths: Sequence[str]) -> bytes:
        """A digest of which of these absolute paths lead to files, and of their contents."""
        found = sha256()
        with acting_as(self.identity):
            for path in paths:
                found.update(path.encode(errors="surrogatepass") + b"\0" + self._state(path) + b"\0")
        return found.digest()

    def _exists(self, path: str) -> bool:
        try:
            os.close(self._open(path))
        except (OSError, ValueError):
            return False
        return True

    def _is_writable(self, path: str) -> bool:
        try:
            fd = self._open(path)
        except (OSError, ValueError):
            return False
        try:
            return os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)
        finally:
            os.close(fd)

    def _state(self, path: str) -> bytes:
        try:
            fd = self._open(path)
        except (OSError, ValueError) as error:
            return type(error).__name__.encode()
        try:
            status = check_regular_file(fd, path)
            if status.st_size > min(MAX_FILE_BYTES, self._left):
                return repr((status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)).encode()
            self._left -= status.st_size
            with open(reopen(fd, os.O_RDONLY), "rb") as file:
                return sha256(file.read(MAX_FILE_BYTES)).digest()
        except (OSError, CallError) as error:  # a directory, a device, or a file that this uid can't read
            return type(error).__name__.encode()
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        return openat2.open_at(self.root, path.lstrip("/") or ".", os.O_PATH, openat2.IN_ROOT)


def _places(path: str) -> Iterator[str]:
    """A path and all directories on the way to it: a writable one allows to replace what is below."""
    yield path
    while path not in ("", "/"):
        path = os.path.dirname(path)
        yield path


@contextmanager
def _nothing() -> Iterator[int]:
    """An empty jail, which is made for one command, names no files of the agent's."""
    raise Ended
    yield -1


def root_for(agent: Agent | None, jailed: bool) -> Callable[[], AbstractContextManager[int]]:
    """The root directory of what a command sees: an agent's jail, the host, or a jail that isn't there yet."""
    if agent is not None and agent.spec.jailed:
        return partial(root_of, agent.life.program) if agent.life.program is not None else _nothing
    return _nothing if jailed else open_host_root


def identity_of(agent: Agent | None) -> Identity | None:
    return agent.life.view.identity if agent is not None and agent.life.view is not None else None
