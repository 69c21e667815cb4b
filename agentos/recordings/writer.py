"""Writes recordings: appends lines in batches, replaces manifests. Everything here blocks."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from attrs import Factory, define, frozen

from agentos.kernel.internal_errors import internal
from agentos.private_files import append_whole, open_file, replace_file
from agentos_sdk.opcodes import op_name

from .format import CALLS, MANIFEST, MAX_LINE_BYTES, Differences
from .lines import LineMaker, Seen

FULL = "the recording is full"


@define(eq=False)
class Target:
    """The files of one recording, for the thread that writes."""

    directory: Path
    max_bytes: int
    size: int = 0  # bytes of its lines
    begun: bool = False  # it is on disk
    differences: dict[str, Differences] = Factory(lambda: defaultdict(Differences))  # by life


@frozen
class Batch:
    """What is written together: calls with their recordings, and manifests."""

    calls: Sequence[tuple[Seen, Sequence[Target]]]
    manifests: Sequence[tuple[Target, bytes]] = ()


def write(maker: LineMaker, batch: Batch) -> dict[Target, str]:
    """Write a batch. Returns why a recording can't go on, for each that can't; its file ends with a whole line."""
    ended: dict[Target, str] = {}
    data = defaultdict[Target, list[bytes]](list)
    sizes = dict[Target, int]()
    for seen, targets in batch.calls:
        try:
            line = maker.describe(seen)
        except Exception as bug:
            internal(bug, "a line of a recording")
            reason = f"the call {op_name(seen.op)} could not be written: {type(bug).__name__}"
            ended |= {target: reason for target in targets if target not in ended}
            continue
        for target in targets:
            if target in ended:
                continue
            made = maker.encode(line, target.differences)
            sizes[target] = sizes.get(target, target.size) + len(made)
            if len(made) > MAX_LINE_BYTES:
                ended[target] = f"a call took more than {MAX_LINE_BYTES >> 20} MiB"
            elif sizes[target] > target.max_bytes:
                ended[target] = f"{FULL}: its calls took {target.max_bytes:,} bytes"
            else:
                data[target].append(made)
    new = [each for each in batch.manifests if not each[0].begun]
    for target, manifest in new:  # before its lines: without a manifest they can't be read
        _try(ended, target, b"", manifest)
    for target, lines in data.items():
        _try(ended, target, b"".join(lines), None)
    for target, manifest in batch.manifests:
        _try(ended, target, b"", manifest)
    return ended


def _try(ended: dict[Target, str], target: Target, lines: bytes, manifest: bytes | None) -> None:
    try:
        if not target.begun:
            target.directory.mkdir(mode=0o700)
        if lines or not target.begun:
            _append(target, lines)
        if manifest is not None:
            replace_file(target.directory / MANIFEST, manifest, sync=False)
        target.begun = True
    except OSError as error:
        ended[target] = f"it can't be written: {error.strerror}"


def _append(target: Target, data: bytes) -> None:
    fd = open_file(target.directory / CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        append_whole(fd, data)
    finally:
        os.close(fd)
    target.size += len(data)
