"""Overlays of agents: opened for a life, looked at, applied, and undone. File work runs in threads.

An agent's overlay is used by one call at a time. Its program may run meanwhile: what is applied is compared with the
digests of what was shown, file by file, as it is copied.
"""

import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from weakref import WeakValueDictionary

import trio
from msgspec import Struct

from agentos.threads import run_in_thread
from agentos_sdk.values import HostIds

from . import beneath, changes, commits, obeyed, run, text
from .changes import Change
from .choice import Wanted, add_needed, build_steps, check_choice, choose
from .commits import Commits
from .records import BadLayer, CannotApply, Record, Run, Snapshot, inverse, read_run
from .store import KEPT_RUNS, Store, drop_layers

Left = Mapping[str, str]
"""Why something wasn't done, by path."""
Led = Mapping[str, str]
"""Why a program obeys a name in a directory, by that name; ``""`` stands for all."""


class NoOverlay(Exception):
    """There is no overlay of this name, or no apply that could be undone; the text says which."""


class Changed(Exception):
    """The changes aren't those that were shown."""


class Opened(Struct, frozen=True):
    """The layers of one life: the upper one, and the trees beneath it, the newest first."""

    upper: str
    sealed: tuple[str, ...] = ()


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


class Overlays:
    """All overlays of one kernel. ``state`` is its directory, held.

    ``find_led`` finds the names in a directory that programs obey for more than their spelling, with the reasons.
    ``give_back`` gives an agent what else a snapshot has of it, before a life begins that goes back to it.
    ``list_known`` has the names of all agents that are declared or go on.
    """

    def __init__(self, state: Path, find_led: Callable[[str], Led] = lambda _: {}) -> None:
        self.store, self._find_led = Store(state), find_led
        self.give_back: Callable[[Snapshot], Awaitable[None]] | None = None
        self.list_known: Callable[[], AbstractSet[str]] = frozenset
        self.empty: str | None = None  # a directory of ours over which agents without one have an overlay
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._performing = trio.Lock()  # two agents may have the same directory

    def make_empty(self) -> str:
        """Make the directory :attr:`empty`. Nothing is ever applied to it. Blocks."""
        self.empty = self.store.make_empty()
        return self.empty

    async def finish_all(self) -> list[str]:
        """Finish what a killed kernel has begun; returns a sentence for each overlay where that fails."""
        return await run_in_thread(self._finish_all)

    async def open(self, name: str, directory: str, owner: HostIds | None) -> Opened:
        """The layers for a life of this agent: those that it had, or a new one where nothing is left in them.

        ``owner`` is the agent's uid and gid on the host. Raises :class:`BadLayer`, ``OSError``, or what ``give_back``
        does.
        """
        async with self.lock(name):
            while (opened := await run_in_thread(self._open, name, directory, owner)) is None:
                await self.finish_return(name)
            return opened

    async def finish_return(self, name: str) -> None:
        """Have an agent work from the snapshot that it is to return to, if there is one. Its lock is held.

        A kernel that is killed meanwhile does all of it again.
        """
        wanted = await run_in_thread(self._find_return, name)
        if wanted is not None:
            if self.give_back is not None:
                await self.give_back(wanted)
            await run_in_thread(self._return, name, wanted)

    async def diff(
        self, name: str, paths: Sequence[str] = (), with_texts: bool = False, by_agent: bool = False
    ) -> Diff:
        """The changes at and below ``paths``. Raises :class:`NoOverlay`, and what :meth:`apply` does.

        ``by_agent``: it tells nothing of files that the agent may not read.
        """
        async with self.lock(name):
            return await run_in_thread(self._diff, name, paths, with_texts, by_agent)

    async def apply(self, name: str, wanted: Wanted) -> Outcome:
        """Make the changes in the directory. Each is made whole or not at all, and the host's own are never lost.

        Raises :class:`Changed`, :class:`BadChoice`, :class:`NoOverlay`, :class:`CannotApply`, :class:`BadLayer`,
        :class:`TooManyChanges` or ``OSError``; then nothing has changed.
        """
        async with self.lock(name), self._performing:
            return await run_in_thread(self._apply, name, wanted)

    async def undo(self, name: str, apply: str | None = None) -> Outcome:
        """Undo an apply of this agent's, the last one by default. Raises as :meth:`apply` does."""
        async with self.lock(name), self._performing:
            return await run_in_thread(self._undo, name, apply)

    async def discard(self, name: str, runs: Callable[[], bool]) -> bool:
        """Have the next life begin with an empty layer; remove this one now, unless it ``runs``, which is returned.

        Raises :class:`NoOverlay`, :class:`BadLayer` or ``OSError``.
        """
        async with self.lock(name):
            used = runs()  # a life that begins now waits for the lock
            await run_in_thread(self._discard, name, used)
            return used

    def lock(self, name: str) -> trio.Lock:
        """The lock of one agent's overlay."""
        return self._locks.setdefault(name, trio.Lock())

    def _finish_all(self) -> list[str]:
        found = []
        try:
            self.store.collect()
        except (OSError, BadLayer) as error:
            place = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            found.append(f"layers and snapshots that nothing needs any more may stay: {place}")
        for name in sorted(self.store.list_names()):
            try:
                self.store.finish(name)
            except (OSError, BadLayer, CannotApply) as error:
                found.append(f"{name}: what was being applied when the kernel ended can't be finished: {error}")
        return found

    def _find_return(self, name: str) -> Snapshot | None:
        record = self.store.load(name)
        if record is None or not record.returning:
            return None
        found = self.store.find_snapshot(name, record.returning)
        if found is None:
            raise BadLayer(f"{name} is to go back to the snapshot {record.returning}, which isn't there any more")
        return found

    def _return(self, name: str, snapshot: Snapshot) -> None:
        record = self.require(name)
        record.layer, record.sealed = "", [*snapshot.layers]
        record.since, record.stamps = snapshot.since, {**snapshot.stamps, **record.stamps}
        record.snapshot, record.returning = snapshot.id, ""
        record.settled = record.discarded = False
        self.store.save(name, record)
        self.store.sweep(name)

    def _open(self, name: str, directory: str, owner: HostIds | None) -> Opened | None:
        """None if it has to return to a snapshot before."""
        self.store.finish(name)
        record = self.store.load(name)
        if record is not None and record.returning:
            return None
        if record is not None and record.discarded:
            pass
        elif record is not None and (record.settled or record.directory != directory):
            has_changes = self.has_changes(name, record)
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
            record = self.store.begin(name, directory, owner)
        if not record.layer:
            self.store.add_upper(name, record, owner)
        upper, *sealed = self._list_trees(name, record)
        return Opened(str(upper.parent), tuple(map(str, sealed)))

    def _discard(self, name: str, in_use: bool) -> None:
        record = self.require(name)
        record.discarded, record.returning = True, ""
        self.store.save(name, record)
        if not in_use:
            drop_layers(self.store, name, record)

    def has_changes(self, name: str, record: Record) -> bool:
        """Whether changes wait in an overlay. Raises what :meth:`diff` does. Blocks."""
        return not self._is_untouched(name, record) and bool(self._find(name, record, ()).changes)

    def require(self, name: str) -> Record:
        """What is known of an agent's overlay, with all runs finished. Raises :class:`NoOverlay`."""
        self.store.finish(name)
        if (record := self.store.load(name)) is None:
            raise NoOverlay(f"{name} has no overlay: its workspace isn't one, or it has never started")
        return record

    def _list_trees(self, name: str, record: Record) -> list[Path]:
        """The trees of an overlay's layers, the newest first."""
        own = [f"{name}/{record.layer}"] if record.layer else []
        return [self.store.find_tree(layer) for layer in (*own, *record.sealed)]

    @contextlib.contextmanager
    def _open_both(self, name: str, record: Record) -> Iterator[tuple[Sequence[int], int]]:
        with contextlib.ExitStack() as stack:
            trees = [stack.enter_context(beneath.open_top(str(tree))) for tree in self._list_trees(name, record)]
            directory = stack.enter_context(beneath.open_top(record.directory))
            if os.fstat(directory).st_ino != record.inode:
                raise BadLayer(self._describe_replaced(name, record))
            yield trees, directory

    def _is_untouched(self, name: str, record: Record) -> bool:
        return not record.sealed and (not record.layer or self.store.is_empty(name, record.layer))

    def _describe_replaced(self, name: str, record: Record) -> str:
        with self.store.hold(name) as place:
            return (
                f"{record.directory} was replaced by another directory since {name} began: put the former one back, "
                f"or remove {place} with what {name} has changed"
            )

    def _find(
        self, name: str, record: Record, paths: Sequence[str], with_texts: bool = False, by_agent: bool = False
    ) -> Diff:
        if record.discarded:
            return Diff(record.directory, [], changes.compute_digest([]))
        with self._open_both(name, record) as (layers, directory):
            found = changes.find_changes(layers, directory, record.base, by_agent)
            found = changes.name_led(found, self._find_led(record.directory))
            made, unsound, moved = list[Commits](), dict[str, str](), set[str]()
            if not by_agent:
                made, unsound, moved = commits.find_commits(layers, directory, found, record.since)
            found = [
                changes.mark(one, unsound.get(one.root) or unsound.get(one.path, ""), one.path in moved)
                for one in found
            ]
            chosen = [one for one in changes.select(found, paths) if record.declined.get(one.path) != one.identity]
            texts = text.Texts(layers, directory).describe_all(chosen) if with_texts else {}
        roots = {one.root for one in chosen}
        made = [one for one in made if f"{one.repository}/.git".lstrip("/") in roots]
        return Diff(record.directory, chosen, changes.compute_digest(chosen), texts, made)

    def _diff(self, name: str, paths: Sequence[str], with_texts: bool, by_agent: bool = False) -> Diff:
        return self._find(name, self.require(name), paths, with_texts, by_agent)

    def _apply(self, name: str, wanted: Wanted) -> Outcome:
        record = self.require(name)
        everything = self._find(name, record, ()).changes
        if record.directory == self.empty:
            raise CannotApply(f"{name} worked on no directory of the host's: `agentos cp` copies its files")
        shown = [*changes.select(everything, wanted.paths)]
        if changes.compute_digest(shown) != wanted.digest:
            raise Changed("the changes aren't those that were shown: look at them again")
        check_choice(shown, wanted)
        chosen, left = choose(shown, wanted)
        for change in shown:
            if wanted.resolve.get(change.path) == "theirs":
                record.declined[change.path] = change.identity
        done = Run(secrets.token_hex(8), record.directory, build_steps(add_needed(chosen, everything)))
        if done.steps:
            with self._open_both(name, record) as (layers, _):
                self._perform(name, record, done, layers)
        tried = {step.path for step in done.steps}  # also the directories of what was chosen
        left = {path: why for path, why in left.items() if path not in tried}
        left |= {step.path: step.conflict for step in done.steps if step.conflict}
        applied = list(dict.fromkeys(step.path for step in done.steps if step.path not in left))
        record.settled = len(applied) == len(everything)
        self.store.save(name, record)
        return Outcome(done.id if applied else "", applied, left)

    def _undo(self, name: str, apply: str | None) -> Outcome:
        record = self.require(name)
        wanted = apply if apply is not None else record.applied[-1] if record.applied else None
        if wanted is None:
            none = f"of the last {KEPT_RUNS} applies none is left to undo" if record.runs else "nothing was applied yet"
            raise NoOverlay(f"{name}: {none}")
        if wanted not in record.applied:
            raise NoOverlay(f"{name}: {wanted} is no apply that can be undone, which are {', '.join(record.applied)}")
        with self.store.hold(name) as place:
            former = read_run(place / f"r-{wanted}")
            steps = [step for step in inverse(former) if not obeyed.is_in_objects(step.path)]  # later ones need it
            undo = Run(secrets.token_hex(8), former.directory, steps, undoes=wanted)
            with beneath.open_top(str(place / f"r-{wanted}" / "old")) as old:
                self._perform(name, record, undo, [old])
        left = {step.path: step.conflict for step in undo.steps if step.conflict}
        undone = list(dict.fromkeys(step.path for step in undo.steps if step.path not in left))
        return Outcome(undo.id, undone, left)

    def _perform(self, name: str, record: Record, wanted: Run, sources: Sequence[int]) -> None:
        record.doing = wanted.id
        self.store.save(name, record)
        done: Run | None = None
        try:
            with self.store.hold(name) as place:
                run.perform(place / f"r-{wanted.id}", wanted, sources)
            done = wanted
        finally:
            if done is not None or wanted.phase == "staging":  # otherwise the record stays, to finish it by
                self.store.end_run(name, record, done)
                self.store.sweep(name)
