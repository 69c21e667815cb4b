"""A git repository of many files, of which nothing is packed away: what agents are given to work on."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.speed.processes import MeasurementError

FILES, DIRECTORIES = 50_000, 1_000
SIZE = 2_000  # bytes of each


def path_of(number: int) -> str:
    return f"dir-{number % DIRECTORIES}/file-{number // DIRECTORIES}"


def make_repository(top: Path) -> Path:
    """All files are committed, in one pack. Raises ``MeasurementError`` where git fails."""
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch=main")
    with subprocess.Popen(["git", "fast-import", "--quiet"], cwd=top, stdin=subprocess.PIPE) as importing:
        assert importing.stdin is not None
        for part in _commit():
            importing.stdin.write(part)
    if importing.returncode != 0:
        raise MeasurementError(f"git fast-import has failed with status {importing.returncode}")
    git(top, "reset", "--quiet", "--hard", "main")
    # Older than git's index, as a person's files are: what was written in the same second is read at each first look.
    before = time.time() - 3600
    for number in range(FILES):
        os.utime(top / path_of(number), (before, before))
    git(top, "update-index", "--refresh", "-q")
    return top


def _commit() -> Iterator[bytes]:
    """The stream of git fast-import."""
    for number in range(FILES):
        text = (f"a line of file {number}\n" * SIZE)[:SIZE]
        yield f"blob\nmark :{number + 1}\ndata {SIZE}\n{text}\n".encode()
    yield b"commit refs/heads/main\ncommitter a <a@example.com> 1000000000 +0000\ndata 0\n"
    for number in range(FILES):
        yield f"M 100644 :{number + 1} {path_of(number)}\n".encode()


def git(top: Path, *words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=top, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise MeasurementError(f"git {' '.join(words)}: {ended.stderr.strip()}")
    return ended.stdout


def take_back(top: Path) -> None:
    """Make all files those that were committed."""
    git(top, "reset", "--quiet", "--hard")
    git(top, "clean", "--quiet", "--force", "-d")
