"""Overlays of agents that are no more: what is removed of them, so that tasks and forks don't fill the disk.

Changes that wait are never removed: the operator may still look at them and apply them. Of an overlay in which nothing
waits the layers go, and its applies can be undone while few others are newer.
"""

import os
import stat
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from agentos.threads import run_in_thread

from . import beneath
from .changes import TooManyChanges
from .overlays import Overlays
from .records import BadLayer, CannotApply, Record
from .store import Store, drop_layers

MAX_UNDOABLE = 100  # overlays without layers whose applies can be undone
AGE = 86400.0  # seconds that an overlay in which nothing waits is kept while the kernel runs

HasChanges = Callable[[str, Record], bool]


async def remove_leftovers(overlays: Overlays, age: float = 0.0) -> list[str]:
    """Remove the layers of overlays in which nothing waits, of agents that are no more, after ``age`` seconds.

    Returns a sentence for each where that fails.
    """
    failed: list[str] = []
    old, too_many = await run_in_thread(_list_old, overlays.store, overlays.list_known(), age)
    for name in old:
        async with overlays.lock(name):
            if name not in overlays.list_known():
                failed += await run_in_thread(_try_to_remove, overlays.store, name, overlays.has_changes)
    for name in too_many:
        async with overlays.lock(name):
            if name not in overlays.list_known():
                await run_in_thread(overlays.store.forget_unless_named, name)
    return failed


def _list_old(store: Store, known: AbstractSet[str], age: float) -> tuple[list[str], list[str]]:
    """The overlays of this age that have layers; and of those that have none all but the newest."""
    now, old, bare = time.time(), list[str](), list[tuple[float, str]]()
    for name in sorted(store.list_names() - known):
        try:
            record, written = store.load(name), store.written_at(name)
        except (OSError, BadLayer):
            continue  # told where it is used, or gone meanwhile
        if record is not None and is_bare(record):
            bare.append((written, name))
        elif now - written >= age:
            old.append(name)
    return old, [name for _, name in sorted(bare)[:-MAX_UNDOABLE]]


def _try_to_remove(store: Store, name: str, has_changes: HasChanges) -> list[str]:
    try:
        remove_leftover(store, name, has_changes)
    except (OSError, BadLayer, CannotApply, TooManyChanges) as error:
        return [f"{name}: whether its changes are needed any more can't be told, so they stay: {error}"]
    return []


def remove_leftover(store: Store, name: str, has_changes: HasChanges) -> None:
    """Remove the layers of an overlay in which nothing waits, and all of it if nothing is left. Its lock is held.

    Raises ``OSError``, :class:`BadLayer` and what ``has_changes`` does. Blocks.
    """
    record = store.load(name)
    if record is None or record.doing or record.returning:
        return
    if not record.discarded and not _is_others(store, name, record):
        if not record.settled and _has_files(store, name, record):  # without a look at all that it would have to read
            return
        if has_changes(name, record):
            return
    drop_layers(store, name, record)
    if not record.runs and not any(one.name == name for one in store.list_snapshots()):
        store.forget_unless_named(name)


def is_bare(record: Record) -> bool:
    """Whether it has no layers."""
    return record.discarded and not record.layer and not record.sealed


def _has_files(store: Store, name: str, record: Record) -> bool:
    """Whether there is more than directories in the layers: a program that has only read leaves those at most."""
    if record.sealed or not record.layer:
        return bool(record.sealed)
    waiting = [""]
    with beneath.open_top(str(store.find_tree(f"{name}/{record.layer}"))) as top:
        while waiting:
            path = waiting.pop()
            with beneath.open_directory(top, path) as here:
                for entry in os.listdir(here):
                    if not stat.S_ISDIR(os.stat(entry, dir_fd=here, follow_symlinks=False).st_mode):
                        return True
                    waiting.append(f"{path}/{entry}".lstrip("/"))
    return False


def _is_others(store: Store, name: str, record: Record) -> bool:
    """Whether it is a fork without changes of its own: a snapshot or another agent has all that it shows."""
    if not record.forked_from or (record.layer and not store.is_empty(name, record.layer)):
        return False
    named = {layer for one in store.list_snapshots() for layer in one.layers}
    for other in store.list_names() - {name}:
        found = store.load(other)
        named |= set(found.sealed) if found is not None else set()
    return named >= set(record.sealed)
