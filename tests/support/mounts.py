"""Mounts that tests make, in a mount namespace of the test run."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.sandbox.inside import libc
from agentos.sandbox.inside.mounts import MS_PRIVATE, MS_REC
from agentos.sandbox.plan import NEWNS


@contextlib.contextmanager
def mounted(kind: str, options: str, place: Path) -> Iterator[Path]:
    """A file system at ``place``, without any device; CalledProcessError where none can be mounted."""
    mount = ["mount", "-t", kind, "-o", options, "mounted-by-a-test", str(place)]
    subprocess.run(mount, capture_output=True, text=True, check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of that size, such as ``16M``, at ``place``, a directory; the test is skipped where none can be."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mounted("tmpfs", f"size={size},mode=700", place))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no small file system can be mounted here: {error.stderr.strip()}")
        yield place


def enter_namespace() -> None:
    """Give this process, which has one thread that opens files, and its children a mount table of their own.

    What the host or other tests mount isn't seen here: it would end jails that wait for a program. Without the right
    to, nothing changes; such a test run can't mount anything either.
    """
    with contextlib.suppress(PermissionError):
        libc.unshare(NEWNS)
        libc.mount("none", "/", None, MS_REC | MS_PRIVATE)
