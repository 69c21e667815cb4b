"""Reading files that an agent may replace at any moment."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from agentos.services.files.foreign_files import read_regular


@pytest.mark.parametrize("kind", ["fifo", "fifo with a writer", "directory", "symlink"])
def test_what_is_no_file_is_an_error_and_leaves_nothing_open(tmp_path: Path, kind: str) -> None:
    place, writer = tmp_path / "it", -1
    if kind == "directory":
        place.mkdir()
    elif kind == "symlink":
        place.symlink_to("/etc/passwd")
    else:
        os.mkfifo(place)
        writer = os.open(place, os.O_RDWR) if "writer" in kind else -1
    top = os.open(tmp_path, os.O_PATH)
    before = os.listdir("/proc/self/fd")

    with pytest.raises(OSError, match="it"):
        read_regular("it", 10, top)

    assert os.listdir("/proc/self/fd") == before
    for fd in (top, *([writer] if writer >= 0 else [])):
        os.close(fd)


def test_of_a_file_the_first_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"abcdef")
    top = os.open(tmp_path, os.O_PATH)

    assert read_regular("it", 3, top) == read_regular(tmp_path / "it", 3) == b"abc"
    os.close(top)


def test_a_lease_of_another_program_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"abc")
    holder = os.open(tmp_path / "it", os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # Linux tells the holder
    fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    with pytest.raises(BlockingIOError):
        read_regular(tmp_path / "it", 3)

    os.close(holder)
    signal.signal(signal.SIGIO, before)
