"""The record of a running kernel, by which ``agentos kernels`` and clients outside a project find it.

A file in the user's runtime directory, locked with flock as long as the kernel runs. Linux releases the lock however
the kernel ends, so a lock that is free means that the kernel is dead.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from agentos.private_files import UnsafeFile, display_path, hold_directory, open_file
from agentos_sdk.project import RunningKernel, is_locked, runtime_directory

from .wire.listener import ListenError

log = logging.getLogger("agentos.kernel")

CHOOSE_ANOTHER = "set XDG_RUNTIME_DIR to a directory of your own, or choose a socket with --socket"


@contextlib.contextmanager
def record_kernel(kernel: RunningKernel) -> Iterator[None]:
    """Create the runtime directory and this kernel's record in it, and remove the records of dead kernels.

    If other users can change the directory, or it can't be written to, :class:`ListenError` is raised for a socket in
    it; for any other socket it is logged that the kernel isn't listed.
    """
    directory = Path(runtime_directory())
    with contextlib.ExitStack() as undo:
        try:
            held = undo.enter_context(hold_directory(directory, CHOOSE_ANOTHER))
            remove_stale_records(held)
            undo.enter_context(write_record(held, kernel))
        except OSError as error:
            why = f"{display_path(error.filename or directory)}: {error.strerror}"
            if Path(kernel.socket).parent == directory:
                raise ListenError(why if isinstance(error, UnsafeFile) else f"{why}: {CHOOSE_ANOTHER}") from None
            log.warning("`agentos kernels` won't list this kernel: %s", why)
        yield


@contextlib.contextmanager
def write_record(directory: Path, kernel: RunningKernel) -> Iterator[None]:
    """The record appears when it is complete and locked, and is removed at the end."""
    path = directory / f"{kernel.name}.{kernel.pid}.json"
    temporary = path.with_suffix(".new")
    with open(open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump(kernel._asdict(), file)
            file.flush()
            os.replace(temporary, path)
            yield
        finally:
            temporary.unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def remove_stale_records(directory: Path) -> None:
    """Remove the records of kernels that were killed. They are complete, so none belongs to a kernel that starts."""
    for path in directory.glob("*.json"):
        with contextlib.suppress(FileNotFoundError), open(open_file(path, os.O_RDONLY)) as file:
            if not is_locked(file.fileno()):
                path.unlink()
