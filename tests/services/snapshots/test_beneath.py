"""Files below a directory, which others change meanwhile."""

import hashlib
import os
from pathlib import Path

import pytest

from agentos.services.snapshots import beneath


def test_a_copy_of_a_file_that_grows_all_the_time_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = b"begin" * 500_000
    (tmp_path / "log").write_bytes(begin)
    reads, read = 0, os.read

    def append_and_read(fd: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 50, "it reads what is written meanwhile"
        with open(tmp_path / "log", "ab") as log:
            log.write(bytes(1 << 20))
        return read(fd, size)

    with (
        beneath.open_top(str(tmp_path)) as top,
        beneath.open_file(top, "log") as file,
        open(tmp_path / "to", "wb") as to,
    ):
        monkeypatch.setattr(os, "read", append_and_read)
        digest = beneath.copy(file, to.fileno())

    assert digest == hashlib.sha256(begin).hexdigest()
    assert (tmp_path / "to").read_bytes() == begin
