"""Overlays of agents: opened for a life, looked at, applied, and undone. File work runs in threads.

An agent's overlay is used by one call at a time. Its program may run meanwhile: what is applied is compared with the
digests of what was shown, file by file, as it is copied.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

import trio
from msgspec import Struct

from agentos.threads import run_in_thread
from agentos_sdk.values import HostIds

from . import beneath, changes, commits, obeyed, run, text
from .changes import Change
from .commits import Commits
from .run import CannotApply, Look, Run, Step
from .store import KEPT_RUNS, BadLayer, Record, Store

Side = Literal["ours", "theirs"]
Left = Mapping[str, str]
"""Why something wasn't done, by path."""


class NoOverlay(Exception):
    """There is no overlay of this name, or no apply that could be undone; the text says which."""


class BadChoice(Exception):
    """What was chosen for a conflict, or named, isn't among the changes; the text says which."""


class Changed(Exception):
    """The changes aren't those that were shown."""


class Diff(Struct, frozen=True):
    """The changes of an overlay, with commits in its repositories, and texts by path where they were asked for."""

    directory: str
    changes: Sequence[Change]
    digest: str
    texts: Mapping[str, str] = {}
    commits: Sequence[Commits] = ()


class Outcome(Struct, frozen=True):
    """What an apply or an undo has done: its id, empty if there was nothing to do, the paths, and what was left."""

    id: str
    paths: Sequence[str]
    left: Left


class Wanted(Struct, frozen=True):
    """Which changes to apply: at and below ``paths`` (all if there are none), obeyed names that ``also`` names.

    ``resolve`` decides conflicts: the agent's version (``ours``), or the host's (``theirs``).
    """

    digest: str
    paths: Sequence[str] = ()
    also: Sequence[str] = ()
    resolve: Mapping[str, Side] = {}


class Overlays:
    """All overlays of one kernel. ``state`` is its directory, held."""

    def __init__(self, state: Path) -> None:
        self._store = Store(state)
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._performing = trio.Lock()  # two agents may have the same directory

    def make_place(self) -> str:
        """The directory of the layers, by a path that other processes can use. Blocks."""
        return self._store.make_place()

    async def finish_all(self) -> list[str]:
        """Finish what a killed kernel has begun; returns a sentence for each overlay where that fails."""
        return await run_in_thread(self._finish_all)

    async def open(self, name: str, directory: str, owner: HostIds | None) -> str:
        """The upper layer for a life of this agent: the one that it had, or a new one where nothing is left in that.

        ``owner`` is the agent's uid and gid on the host. Raises :class:`BadLayer` or ``OSError``.
        """
        async with self._lock(name):
            return await run_in_thread(self._open, name, directory, owner)

    async def diff(
        self, name: str, paths: Sequence[str] = (), with_texts: bool = False, by_agent: bool = False
    ) -> Diff:
        """The changes at and below ``paths``. Raises :class:`NoOverlay`, and what :meth:`apply` does.

        ``by_agent``: it tells nothing of files that the agent may not read.
        """
        async with self._lock(name):
            return await run_in_thread(self._diff, name, paths, with_texts, by_agent)

    async def apply(self, name: str, wanted: Wanted) -> Outcome:
        """Make the changes in the directory. Each is made whole or not at all, and the host's own are never lost.

        Raises :class:`Changed`, :class:`BadChoice`, :class:`NoOverlay`, :class:`CannotApply`, :class:`BadLayer`,
        :class:`TooManyChanges` or ``OSError``; then nothing has changed.
        """
        async with self._lock(name), self._performing:
            return await run_in_thread(self._apply, name, wanted)

    async def undo(self, name: str, apply: str | None = None) -> Outcome:
        """Undo an apply of this agent's, the last one by default. Raises as :meth:`apply` does."""
        async with self._lock(name), self._performing:
            return await run_in_thread(self._undo, name, apply)

    async def discard(self, name: str, in_use: bool) -> None:
        """Have the next life begin with an empty layer, and remove this one now unless it is ``in_use``.

        Raises :class:`NoOverlay`, :class:`BadLayer` or ``OSError``.
        """
        async with self._lock(name):
            await run_in_thread(self._discard, name, in_use)

    def _lock(self, name: str) -> trio.Lock:
        return self._locks.setdefault(name, trio.Lock())

    def _finish_all(self) -> list[str]:
        found = []
        for name in sorted(self._store.list_names()):
            try:
                self._store.finish(name)
            except (OSError, BadLayer, CannotApply) as error:
                found.append(f"{name}: what was being applied when the kernel ended can't be finished: {error}")
        return found

    def _open(self, name: str, directory: str, owner: HostIds | None) -> str:
        self._store.finish(name)
        record = self._store.load(name)
        if record is not None and record.discarded:
            pass
        elif record is not None and (record.settled or record.directory != directory):
            has_changes = not self._is_untouched(name, record) and bool(self._find(name, record, ()).changes)
            if has_changes and record.directory != directory:
                raise BadLayer(
                    f"{name} has changes of {record.directory} that aren't applied: apply them "
                    f"(`agentos diff {name}`) before it gets another directory, or give it another name"
                )
            record = record if has_changes else None
        elif record is not None and os.stat(directory, follow_symlinks=False).st_ino != record.inode:
            if not self._is_untouched(name, record):
                raise BadLayer(self._describe_replaced(name, record))
            record = None
        if record is None or record.discarded:
            record = self._store.begin(name, directory, owner)
        with self._store.hold(name) as place:
            return str(place / record.layer)

    def _discard(self, name: str, in_use: bool) -> None:
        record = self._require(name)
        record.discarded = True
        self._store.save(name, record)
        if not in_use:
            with self._store.hold(name) as place, beneath.open_top(str(place)) as top:
                beneath.remove_tree(top, record.layer)

    def _require(self, name: str) -> Record:
        self._store.finish(name)
        if (record := self._store.load(name)) is None:
            raise NoOverlay(f"{name} has no overlay: its workspace isn't one, or it has never started")
        return record

    @contextlib.contextmanager
    def _open_both(self, name: str, record: Record) -> Iterator[tuple[int, int]]:
        with (
            self._store.hold(name) as place,
            beneath.open_top(str(place / record.layer / "tree")) as layer,
            beneath.open_top(record.directory) as directory,
        ):
            if os.fstat(directory).st_ino != record.inode:
                raise BadLayer(self._describe_replaced(name, record))
            yield layer, directory

    def _is_untouched(self, name: str, record: Record) -> bool:
        with self._store.hold(name) as place:
            return not os.listdir(place / record.layer / "tree")

    def _describe_replaced(self, name: str, record: Record) -> str:
        with self._store.hold(name) as place:
            return (
                f"{record.directory} was replaced by another directory since {name} began: put the former one back, "
                f"or remove {place} with what {name} has changed"
            )

    def _find(
        self, name: str, record: Record, paths: Sequence[str], with_texts: bool = False, by_agent: bool = False
    ) -> Diff:
        if record.discarded:
            return Diff(record.directory, [], changes.compute_digest([]))
        with self._open_both(name, record) as (layer, directory):
            found = changes.find_changes(layer, directory, record.base, by_agent)
            made, unsound = commits.find_commits(layer, directory, found) if not by_agent else ([], {})
            found = [changes.block(one, unsound.get(one.root, "")) for one in found]
            chosen = [one for one in changes.select(found, paths) if record.declined.get(one.path) != one.identity]
            texts = text.Texts(layer, directory).describe_all(chosen) if with_texts else {}
        roots = {one.root for one in chosen}
        made = [one for one in made if f"{one.repository}/.git".lstrip("/") in roots]
        return Diff(record.directory, chosen, changes.compute_digest(chosen), texts, made)

    def _diff(self, name: str, paths: Sequence[str], with_texts: bool, by_agent: bool = False) -> Diff:
        return self._find(name, self._require(name), paths, with_texts, by_agent)

    def _apply(self, name: str, wanted: Wanted) -> Outcome:
        record = self._require(name)
        everything = self._find(name, record, ()).changes
        shown = [*changes.select(everything, wanted.paths)]
        if changes.compute_digest(shown) != wanted.digest:
            raise Changed("the changes aren't those that were shown: look at them again")
        _check_choice(shown, wanted)
        chosen, left = _choose(shown, wanted)
        for change in shown:
            if wanted.resolve.get(change.path) == "theirs":
                record.declined[change.path] = change.identity
        done = Run(secrets.token_hex(8), record.directory, build_steps(_with_needed(chosen, everything)))
        if done.steps:
            with self._open_both(name, record) as (layer, _):
                self._perform(name, record, done, layer)
        tried = {step.path for step in done.steps}  # also the directories of what was chosen
        left = {path: why for path, why in left.items() if path not in tried}
        left |= {step.path: step.conflict for step in done.steps if step.conflict}
        applied = list(dict.fromkeys(step.path for step in done.steps if step.path not in left))
        record.settled = len(applied) == len(everything)
        self._store.save(name, record)
        return Outcome(done.id if applied else "", applied, left)

    def _undo(self, name: str, apply: str | None) -> Outcome:
        record = self._require(name)
        wanted = apply if apply is not None else record.applied[-1] if record.applied else None
        if wanted is None:
            none = f"of the last {KEPT_RUNS} applies none is left to undo" if record.runs else "nothing was applied yet"
            raise NoOverlay(f"{name}: {none}")
        if wanted not in record.applied:
            raise NoOverlay(f"{name}: {wanted} is no apply that can be undone, which are {', '.join(record.applied)}")
        with self._store.hold(name) as place:
            former = run.read(place / f"r-{wanted}")
            steps = [step for step in run.inverse(former) if not obeyed.is_object(step.path)]  # later ones may need it
            undo = Run(secrets.token_hex(8), former.directory, steps, undoes=wanted)
            with beneath.open_top(str(place / f"r-{wanted}" / "old")) as old:
                self._perform(name, record, undo, old)
        left = {step.path: step.conflict for step in undo.steps if step.conflict}
        undone = list(dict.fromkeys(step.path for step in undo.steps if step.path not in left))
        return Outcome(undo.id, undone, left)

    def _perform(self, name: str, record: Record, wanted: Run, source: int) -> None:
        record.doing = wanted.id
        self._store.save(name, record)
        done: Run | None = None
        try:
            with self._store.hold(name) as place:
                run.perform(place / f"r-{wanted.id}", wanted, source)
            done = wanted
        finally:
            if done is not None or wanted.phase == "staging":  # otherwise the record stays, to finish it by
                self._store.end_run(name, record, done)
                self._store.sweep(name)


def _check_choice(shown: Sequence[Change], wanted: Wanted) -> None:
    paths, named = {change.path for change in shown}, [change for change in shown if change.root]
    if missing := sorted(wanted.resolve.keys() - paths):
        raise BadChoice(f"resolve: {missing[0]} is not among the changes")
    for also in wanted.also:
        if not any(obeyed.is_named(change.path, change.root, also) for change in named):
            raise BadChoice(f"also: {also} is no name among the changes that has to be named")


def _choose(shown: Sequence[Change], wanted: Wanted) -> tuple[list[Change], dict[str, str]]:
    """The changes to apply, and why each of the others is left; those that were declined are neither."""
    chosen: list[Change] = []
    left: dict[str, str] = {}
    for change in shown:
        side = wanted.resolve.get(change.path)
        if side == "theirs":
            continue
        if change.blocked:
            left[change.shown_path] = f"{change.blocked}: it is never applied"
        elif change.root and not any(obeyed.is_named(change.path, change.root, also) for also in wanted.also):
            left[change.path] = f"{change.obeyed}: it is applied with --also {change.root}"
        elif change.conflict and side != "ours":
            left[change.path] = f"{change.conflict}: --ours applies the agent's, --theirs keeps the host's"
        else:
            chosen.append(change)
    return chosen, left


def _with_needed(chosen: Sequence[Change], everything: Sequence[Change]) -> list[Change]:
    """The changes, with the objects of git that refs among them need, and the new directories that all these are in."""
    made = {change.path: change for change in everything if change.what == "created" and change.kind == "directory"}
    of_refs = {change.root for change in chosen if obeyed.is_ref(change.path)}
    found = {change.path: change for change in chosen}
    found |= {one.path: one for one in everything if one.root in of_refs and obeyed.is_object(one.path)}
    for change in [*found.values()]:
        path = change.path
        while path := path.rpartition("/")[0]:
            if path in made:
                found.setdefault(path, made[path])
    return sorted(found.values(), key=lambda change: change.path)


def build_steps(chosen: Sequence[Change]) -> list[Step]:
    """The steps that make these changes, which are sorted by path: removals, children first; then the others."""
    steps = [
        Step("rmdir" if change.kind == "directory" else "remove", change.path, change.under)
        for change in reversed(chosen)
        if change.what == "deleted"
    ]
    for change in chosen:
        look = Look(change.mode, change.mtime, target=change.content if change.kind == "link" else "")
        step = partial(Step, path=change.path, expected=change.under, look=look)
        if change.what == "deleted":
            continue
        if change.kind == "directory":
            steps.append(step("chmod" if change.what == "changed" else "mkdir"))
        elif change.kind == "link":
            steps.append(step("put"))
        else:
            steps.append(step("put", source=change.path, content=change.content))
    return steps
