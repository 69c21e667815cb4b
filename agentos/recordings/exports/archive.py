"""A recording as one file for others: a tar with its directory, which `tar xf` makes again.

::

    NAME.recording/recording.json
    NAME.recording/calls.jsonl        also what ``former.jsonl`` had
    NAME.recording/files/N/…          what commands have changed

What lives began with isn't in it: private keys and unread mail are there as well. Everything blocks.
"""

import os
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from agentos.recordings.changes import INDEX, MAX_BYTES, read_index
from agentos.recordings.format import CALLS, FILES, MANIFEST, MAX_LINE_BYTES, SUFFIX, Manifest, encode_manifest
from agentos.recordings.reader import Recording
from agentos.services.snapshots import beneath

from .contents import Contents, Rewriter
from .redaction import Redaction

Part = tuple[str, Iterable[bytes]]


class CantExport(Exception):
    """The recording can't be exported; the text says what of it, and why."""


def write_export(
    recording: Recording, out: IO[bytes], place: Path, without: Collection[str], redaction: Redaction | None
) -> Manifest:
    """Write the archive, with large parts on disk in ``place`` on the way; returns its manifest.

    Raises :class:`CantExport`, ``BadList``, ``BadRecording``, ``NotKept`` and ``OSError``; then what was written is of
    no use.
    """
    only = None
    if redaction is not None:
        rewriter = Rewriter(Contents(without, redaction.collect))
        only = rewriter.numbers  # the recording may go on meanwhile
        for _, pieces in list_parts(recording, rewriter, rewriter.rewrite_manifest(recording.manifest)):
            for _ in pieces:
                pass
    rewriter = Rewriter(Contents(without, redaction.replace if redaction is not None else None), only)
    manifest = rewriter.rewrite_manifest(recording.manifest)
    at = int(recording.manifest.began)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        top = f"{manifest.name}{SUFFIX}"
        archive.addfile(_describe(top, tarfile.DIRTYPE, 0o700, at))
        for path, pieces in list_parts(recording, rewriter, manifest):
            with tempfile.TemporaryFile(dir=place) as written:
                for piece in pieces:
                    written.write(piece)
                entry = _describe(f"{top}/{path}", tarfile.REGTYPE, 0o600, at)
                entry.size = written.tell()
                written.seek(0)
                archive.addfile(entry, written)
    return manifest


def _describe(name: str, kind: bytes, mode: int, at: int) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode, found.mtime = kind, mode, at
    return found


def list_parts(recording: Recording, rewriter: Rewriter, manifest: Manifest) -> Iterator[Part]:
    """The files of an export; the pieces of each are to be read before the next, which may depend on them."""
    yield MANIFEST, [encode_manifest(manifest)]
    yield CALLS, _check_lines(rewriter.rewrite_lines(recording.calls()))
    if rewriter.contents.has_files:
        yield from _list_files(recording, rewriter)


def _check_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_BYTES:
            raise CantExport(f"line {number} would be longer than {MAX_LINE_BYTES >> 20} MiB")
        yield line


def _list_files(recording: Recording, rewriter: Rewriter) -> Iterator[Part]:
    with ExitStack() as stack:
        own = os.open(recording.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, own)
        try:
            kept = stack.enter_context(beneath.open_directory(own, FILES))
        except FileNotFoundError:
            return
        there = {*os.listdir(kept)}
        for name in (str(number) for number in sorted(rewriter.numbers) if str(number) in there):
            with beneath.open_directory(kept, name) as here:
                if beneath.look(here, INDEX) is not None:  # it is written last
                    yield from _list_changes(here, f"{FILES}/{name}", rewriter)


def _list_changes(here: int, path: str, rewriter: Rewriter) -> Iterator[Part]:
    changes, left = read_index(here), MAX_BYTES
    renamed = [
        replace(one, path=rewriter.change_text(one.path), target=rewriter.change_text(one.target)) for one in changes
    ]
    yield f"{path}/{INDEX}", [msgspec.json.encode(renamed)]
    for place, change in enumerate(changes):
        if change.kind == "file":
            with beneath.open_file(here, str(place)) as fd, open(fd, "rb", closefd=False) as file:
                left -= os.fstat(fd).st_size
                if left < 0:
                    raise CantExport(f"{path} has more than {MAX_BYTES:,} bytes")
                yield f"{path}/{place}", [rewriter.change_bytes(file.read(MAX_BYTES))]
