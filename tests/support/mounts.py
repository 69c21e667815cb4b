"""Mounts on this host: those that tests make, and all others."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = "mounted-by-a-test"


@contextlib.contextmanager
def mounted(kind: str, options: str, place: Path) -> Iterator[Path]:
    """A file system at ``place``, without any device; CalledProcessError where none can be mounted."""
    mount = ["mount", "-t", kind, "-o", options, SOURCE, str(place)]
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


def host_mounts() -> str:
    """This process's mount table without what tests have mounted, which others do in parallel."""
    rows = Path("/proc/self/mountinfo").read_text().splitlines()
    return "\n".join(row for row in rows if f" {SOURCE} " not in row)
