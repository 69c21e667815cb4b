"""Writes recordings: appends lines in batches, replaces manifests. Everything here blocks."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from attrs import Factory, define, frozen

from agentos.kernel.internal_errors import internal
from agentos.private_files import append_whole, open_file, replace_file
from agentos.recordings.format import CALLS, FORMER, MANIFEST, MAX_LINE_BYTES, Differences, Json
from agentos_sdk.opcodes import op_name

from .lines import LineMaker, Seen

FULL = "the recording is full"


@define(eq=False)
class Target:
    """The files of one recording, for the thread that writes.

    ``rotates``: when it is full its older half is dropped; else it ends. ``ended``: why it can't go on.
    """

    directory: Path
    max_bytes: int
    rotates: bool = False
    size: int = 0  # bytes of its lines
    kept: int = 0  # bytes of the files that commands have changed
    former: int = 0  # bytes of those in the former file
    cut: bool = False  # some were dropped
    begun: bool = False  # it is on disk
    ended: str | None = None
    differences: dict[str, Differences] = Factory(lambda: defaultdict(Differences))  # by life
    lines: list[bytes] = Factory(list)  # to be appended
    waiting: int = 0  # bytes of these

    def add(self, maker: LineMaker, line: Json) -> None:
        """Have a line appended. After one that can't be there is none: later ones may go on with it."""
        if self.ended is not None:
            return
        made = maker.encode(line, self.differences)
        if len(made) > MAX_LINE_BYTES:
            self.ended = f"a call took more than {MAX_LINE_BYTES >> 20} MiB"
            return
        held = self.size - self.former + self.waiting + len(made)
        if held > (self.max_bytes // 2 if self.rotates else self.max_bytes):
            if not self.rotates:
                self.ended = f"{FULL}: its calls took {self.max_bytes:,} bytes"
                return
            self.append()
            self._rotate()
            made = maker.encode(line, self.differences)
        self.lines.append(made)
        self.waiting += len(made)

    def append(self) -> None:
        """Append the lines that wait; on an error none of them."""
        lines, self.lines, self.waiting = self.lines, [], 0
        try:
            self._open()
            if lines:
                self._append(b"".join(lines))
        except OSError as error:
            self.fail(error)

    def _open(self) -> None:
        if not self.begun:
            self.directory.mkdir(mode=0o700)
            self._append(b"")
            self.begun = True

    def _append(self, data: bytes) -> None:
        fd = open_file(self.directory / CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            append_whole(fd, data)
        finally:
            os.close(fd)
        self.size += len(data)

    def _rotate(self) -> None:
        """Begin a new file of calls. It stands alone: no question in it goes on with one of the former file."""
        try:
            os.replace(self.directory / CALLS, self.directory / FORMER)
            self.differences.clear()
            self.cut = self.cut or self.former > 0
            self.size, self.former = self.size - self.former, self.size - self.former
            self._append(b"")
        except OSError as error:
            self.fail(error)

    def replace_manifest(self, manifest: bytes) -> None:
        try:
            self._open()
            replace_file(self.directory / MANIFEST, manifest, sync=False)
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        self.ended = self.ended or f"it can't be written: {error.strerror}"


@frozen
class Batch:
    """What is written together: calls with their recordings, and manifests."""

    calls: Sequence[tuple[Seen, Sequence[Target]]]
    manifests: Sequence[tuple[Target, bytes]] = ()


def write(maker: LineMaker, batch: Batch) -> None:
    """Write a batch. What can't go on says why in its ``ended``, and its file ends with a whole line."""
    for target, manifest in batch.manifests:
        if not target.begun:  # before its lines: without a manifest they can't be read
            target.replace_manifest(manifest)
    touched = dict[Target, None]()
    for seen, targets in batch.calls:
        touched |= dict.fromkeys(targets)
        try:
            line = maker.describe(seen)
            for target in targets:
                target.add(maker, line)
        except Exception as bug:
            internal(bug, "a line of a recording")
            for target in targets:
                target.ended = f"the call {op_name(seen.op)} could not be written: {type(bug).__name__}"
    for target in touched:
        target.append()
    for target, manifest in batch.manifests:
        target.replace_manifest(manifest)
