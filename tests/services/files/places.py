"""Places to look for files in: a directory that nobody gets out of, as an agent's own, and the host's files."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from agentos.services.files.resolve import PathRequest, ResolvedPath

T = TypeVar("T")
TOP = "/workspace"


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def own(directory: Path, path: str, **more: Any) -> PathRequest:
    """A path of somebody's who calls ``directory`` /workspace and has nothing else."""
    inside = os.path.normpath(f"/{path}").lstrip("/")
    name = f"{TOP}/{inside}".rstrip("/")
    return PathRequest(given=path, name=name, path=path, top=TOP, root=partial(opened, directory), **more)


def hosts(path: str, **more: Any) -> PathRequest:
    """A path of the host's."""
    return PathRequest(given=path, name=os.path.normpath(path), path=path, **more)


@contextlib.contextmanager
def found(find: Callable[[PathRequest], ResolvedPath], place: PathRequest) -> Iterator[ResolvedPath]:
    """What is there, closed at the end."""
    what = find(place)
    try:
        yield what
    finally:
        what.close()


def in_thread(act: Callable[..., T], *arguments: object) -> T:
    """As the kernel does it: what may be withdrawn runs in one of trio's threads."""

    async def main() -> T:
        return await trio.to_thread.run_sync(act, *arguments)

    return trio.run(main)
