"""Which recordings are kept: those of `record = true` go when they are old, others stay. Everything here blocks."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from .format import CALLS, FILES, FORMER, MANIFEST, NAME, SUFFIX, Manifest
from .own import Marks
from .reader import BadRecording, read_recording

KEPT_LIVES = 20  # of an agent, that ended well
KEPT_FAILED = 100  # of an agent: one that crashes again and again leaves no more, each with a snapshot of its begin


@frozen
class Kept:
    """A recording that has ended; ``size`` is bytes of its calls, and of the files that are kept for it."""

    path: Path
    manifest: Manifest
    size: int

    @property
    def failed(self) -> bool:
        """Whether a life in it failed, or ended with the kernel."""
        return any(life.failed or life.ended is None for life in self.manifest.lives)

    @property
    def agent(self) -> str:
        """The agent whose life it is."""
        return self.manifest.lives[0].agent if self.manifest.lives else ""


def scan(directory: Path) -> list[Kept]:
    """The recordings in a directory, the oldest first. What can't be read is left out, and so never removed."""
    found = []
    for name in os.listdir(directory):
        with suppress(BadRecording, OSError):
            recording = read_recording(directory / name)
            if name == f"{recording.manifest.name}{SUFFIX}":
                size = sum(_size(recording.path / file) for file in (FORMER, CALLS))
                size += sum(life.file_bytes for life in recording.manifest.lives)
                found.append(Kept(recording.path, recording.manifest, size))
    return sorted(found, key=lambda kept: kept.manifest.began)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def list_names(directory: Path) -> Iterator[str]:
    """The names that are taken, also by what can't be read."""
    for name in os.listdir(directory):
        if NAME.fullmatch(own := name.removesuffix(SUFFIX)):
            yield own


def choose_removed(kept: Sequence[Kept], max_total: int) -> Iterator[Kept]:
    """What goes, of recordings from the oldest to the newest: good lives first, then failed ones.

    It is what an agent has beyond :data:`KEPT_LIVES` good lives and :data:`KEPT_FAILED` failed ones, and what is in the
    way of ``max_total`` bytes.
    """
    total, lives = sum(each.size for each in kept), Counter[tuple[str, bool]]()
    removable = [each for each in kept if each.manifest.automatic]
    old = set[Path]()
    for each in reversed(removable):
        lives[each.agent, each.failed] += 1
        if lives[each.agent, each.failed] > (KEPT_FAILED if each.failed else KEPT_LIVES):
            old.add(each.path)
    for each in sorted(removable, key=lambda each: (each.path not in old, each.failed)):
        if each.path in old or total > max_total:
            total -= each.size
            yield each


def prune(directory: Path, marks: Marks, max_total: int, since: float) -> int:
    """Remove what isn't kept of a kernel's own recordings; returns the bytes that all that stay take together.

    Recordings that have begun after ``since``, in seconds since the epoch, and haven't ended go on.
    """
    found = [each for each in scan(directory) if marks.is_own(each.manifest)]
    active = {each.path for each in found if each.manifest.ended is None and each.manifest.began >= since}
    going_on = sum(each.size for each in found if each.path in active)
    removed = [*choose_removed([each for each in found if each.path not in active], max_total - going_on)]
    for each in removed:
        remove(each.path)
    return sum(each.size for each in found) - sum(each.size for each in removed)


def remove(path: Path) -> None:
    """Remove a recording. What else is in its directory stays, and so does the directory then."""
    with suppress(OSError):
        if (path / FILES).is_dir():
            shutil.rmtree(path / FILES)
        for name in (FORMER, CALLS, MANIFEST):
            with suppress(FileNotFoundError):
                os.unlink(path / name)
        os.rmdir(path)
