"""Saves files of a task's directory again: what the user changed before the task went on, and what undo replaces."""

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path

from .saved_files import (
    COPIES,
    LISTING,
    MAX_BYTES,
    Change,
    Entry,
    Files,
    SaveError,
    check_size,
    read_listing,
    remove_tree,
    save_entry,
    write_listing,
)

UNDONE = "undone"
STAGE = "again"


def save_again(top: str, place: Path, foreign: Set[str], now: Files) -> None:
    """Make the present state of the paths ``foreign`` that from before the task; raises :class:`SaveError`.

    All is copied before a copy is replaced, so that an error leaves the former state.
    """
    before, copies, stage = read_listing(place / LISTING), place / COPIES, place / STAGE
    files = merge_listings(before, foreign, now)
    check_size(top, files)
    changed = {path: entry for path, entry in sorted(files.items()) if entry is not before.get(path)}
    if stage.exists():
        remove_tree(stage)
    stage.mkdir(mode=0o700)
    try:
        for path, entry in changed.items():
            _save(top, path, entry, stage)
        for path in sorted(before.keys() - files.keys(), reverse=True):
            _discard(copies / path, None)
        for path, entry in changed.items():
            _discard(copies / path, entry)
            if entry.is_directory:
                (copies / path).mkdir(mode=0o700, exist_ok=True)
            elif (stage / path).exists():
                os.replace(stage / path, copies / path)
        write_listing(place / LISTING, files)
    finally:
        remove_tree(stage)


def merge_listings(before: Files, foreign: Set[str], now: Files) -> dict[str, Entry]:
    """``before`` with the paths ``foreign`` as they are ``now``, so that each path is in directories."""
    files = {path: entry for path, entry in before.items() if path not in foreign}
    for path in foreign & now.keys():
        files[path] = now[path]
        files.update({above: now[above] for above in directories_above(path) if not _is_directory(files.get(above))})
    for path in list(
        files
    ):  # what the task has removed from a directory needs that directory, which the user has removed
        for above in directories_above(path):
            if above not in files and above in before:
                files[above] = before[above]
    return {
        path: entry
        for path, entry in files.items()
        if all(_is_directory(files.get(above)) for above in directories_above(path))
    }


def keep_replaced(top: str, place: Path, changes: Sequence[Change], now: Files) -> tuple[str, int]:
    """Copy what undo is to replace or remove; returns where it is, and how many files are not there.

    An agent can't prevent undo by files that can't be copied: they are counted. The smallest come first.
    """
    copies, number = place / UNDONE, 1
    while copies.exists():
        number += 1
        copies = place / f"{UNDONE}-{number}"
    present = [change.path for change in changes if change.path in now and now[change.path].is_file]
    room, left = MAX_BYTES, 0
    for path in sorted(present, key=lambda path: now[path].size):
        room -= now[path].size
        try:
            if room < 0:
                raise SaveError(path)
            _save(top, path, now[path], copies)
        except SaveError:
            left += 1
    return (str(copies) if copies.exists() else ""), left


def directories_above(path: str) -> Iterator[str]:
    """The directories that a path is in, the nearest last."""
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _save(top: str, path: str, entry: Entry, copies: Path) -> None:
    """As :func:`save_entry`, with the directories that the path is in."""
    try:
        (copies / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"{os.path.join(top, path)}: it can't be saved: {error.strerror}") from None
    save_entry(top, path, entry, copies)


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.is_directory


def _discard(copy: Path, entry: Entry | None) -> None:
    """Remove a copy, unless it is a directory and is to be one."""
    if copy.is_dir():
        if not _is_directory(entry):
            remove_tree(copy)
    else:
        with suppress(OSError):
            copy.unlink()
