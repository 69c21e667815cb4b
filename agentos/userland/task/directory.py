"""The directory that a task works on: saved before it, compared after it, restored by ``agentos task undo``."""

import os
import stat
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .records import PlaceUser, new_place
from .saved_files import (
    COPIES,
    LISTING,
    Change,
    Files,
    SaveError,
    find_changes,
    find_foreign,
    find_linked,
    list_files,
    read_listing,
    remove_tree,
    restore_files,
    save_files,
    write_listing,
)
from .saving_again import directories_above, keep_replaced, save_again

ENDED = "ended.json"
APPLIED = "applied"  # changes of the copy have been made in the directory itself
COPY = "copy"
COPY_LISTING = "copy.json"
MORE_BYTES, MORE_ENTRIES = 1 << 30, 100_000  # that the agent may add
INVERSE: Mapping[str, Any] = {"added": "removed", "removed": "added", "changed": "changed"}


class Applied(NamedTuple):
    """``done`` were made in the directory, ``left`` were changed there by something else."""

    done: Sequence[Change]
    left: Sequence[Change]


class Undone(NamedTuple):
    """``done`` were restored, ``left`` were changed by something else since the end of the task.

    ``kept`` is the directory with copies of what was replaced, empty if there are none; ``lost`` files aren't there.
    ``discarded`` changes were in the agent's copy.
    """

    done: Sequence[Change]
    left: Sequence[Change]
    kept: str = ""
    lost: int = 0
    discarded: int = 0


class TaskDirectory:
    """``path`` is the user's directory, and ``place`` holds what was in it before the task.

    ``workspace`` is where the agent works: ``path`` itself, or a copy of it.
    """

    def __init__(self, path: str, place: Path) -> None:
        self.path, self.place = path, Path(os.path.realpath(place))
        copy = self.place / COPY
        self.workspace = str(copy) if copy.is_dir() else path

    @classmethod
    def save(cls, path: str, with_copy: bool, user: PlaceUser | None = None) -> "TaskDirectory":
        """Save what is in a directory now; raises :class:`SaveError`."""
        try:
            place = new_place(user)
        except OSError as error:
            raise SaveError(f"{error.filename}: {path} can't be saved there: {error.strerror}") from None
        try:
            files = save_files(path, place)
            if with_copy:
                copy = place / COPY
                copy.mkdir()
                if os.geteuid() == 0:  # new files belong to the owner of the directory that they are in
                    owner = os.stat(path)
                    os.chown(copy, owner.st_uid, owner.st_gid)
                every = [Change("removed", name) for name in sorted(files)]
                restore_files(str(copy), str(place / COPIES), files, every)
                write_listing(place / COPY_LISTING, list_files(str(copy)))
        except BaseException:
            with suppress(OSError):
                remove_tree(place)
            raise
        return cls(path, place)

    @property
    def _tops(self) -> tuple[str, str]:
        return self.path, self.workspace

    @property
    def has_copy(self) -> bool:
        return self.workspace != self.path

    def limits(self) -> dict[str, object]:
        """The agent's limits: what is there, and as much as a task may add."""
        files = read_listing(self.place / LISTING)
        size = sum(entry.size for entry in files.values())
        return {"disk": size + MORE_BYTES, "inodes": len(files) + MORE_ENTRIES}

    def linked(self) -> list[str]:
        """The files that the agent can change outside of the directory, as they are there by other names."""
        return find_linked(read_listing(self.place / LISTING)) if not self.has_copy else []

    def changes(self) -> list[Change]:
        """What the task has changed where the agent works."""
        listing = COPY_LISTING if self.has_copy else LISTING
        before, after = read_listing(self._listing(listing)), list_files(self.workspace)
        return find_changes(self.workspace, self.source, before, after)

    def note_end(self) -> None:
        """Remember what is in the directory at the end of the task, so that later changes aren't undone with it."""
        self._note_end(frozenset(), {})

    def note_start(self) -> None:
        """Before an ended task goes on: save again what was changed after its end, since the task hasn't done that.

        Raises :class:`SaveError`. What the task does in a copy doesn't concern these changes.
        """
        ended = self.place / ENDED
        if self.has_copy or not ended.exists():
            return
        now = list_files(self.path)
        try:
            if foreign := find_foreign(now, read_listing(ended)):
                save_again(self.path, self.place, foreign, now)
            ended.unlink()
        except OSError as error:
            raise SaveError(f"{error.filename}: {self.path} can't be saved again there: {error.strerror}") from None

    def proposed(self) -> list[Change]:
        """What of the copy's changes the directory itself doesn't have."""
        changed = {change.path for change in self.changes()}
        here, there = (
            {path: entry for path, entry in list_files(top).items() if path in changed} for top in self._tops
        )
        return find_changes(self.workspace, self.path, here, there)

    def apply(self) -> Applied:
        """Make the copy's changes in the directory itself, but for what was changed there meanwhile."""
        known = read_listing(self._listing(ENDED if (self.place / ENDED).exists() else LISTING))
        foreign = find_foreign(list_files(self.path), known)
        proposed = self.proposed()
        mine = [change for change in proposed if change.path not in foreign]
        plain = ~(stat.S_ISUID | stat.S_ISGID)  # an agent's program must not run with the rights of its owner
        wanted = {name: one._replace(mode=one.mode & plain) for name, one in list_files(self.workspace).items()}
        (self.place / APPLIED).touch()
        try:
            restore_files(self.path, self.workspace, wanted, [Change(INVERSE[what], path) for what, path in mine])
        finally:
            self._note_end(foreign, known)
        return Applied(mine, [change for change in proposed if change.path in foreign])

    def undo(self) -> Undone:
        """Restore what was there before the task, but for what has been changed since its end; the agent's copy, too.

        Where the end of the task isn't known, what is replaced is copied before.
        """
        done = self._undo() if not self.has_copy or (self.place / APPLIED).exists() else Undone([], [])
        if not self.has_copy:
            return done
        changes = self.changes()
        restore_files(self.workspace, self.source, read_listing(self._listing(COPY_LISTING)), changes)
        return done._replace(discarded=len(changes))

    def _undo(self) -> Undone:
        before, now = read_listing(self._listing(LISTING)), list_files(self.path)
        changes = find_changes(self.path, self.source, before, now)
        known = read_listing(ended) if (ended := self.place / ENDED).exists() else None
        foreign = _paths_to_leave(find_foreign(now, known), before, now) if known is not None else set()
        mine = [change for change in changes if change.path not in foreign]
        kept = keep_replaced(self.path, self.place, mine, now) if known is None else ("", 0)
        restore_files(self.path, self.source, before, mine)
        self._note_end(foreign, known or {})
        return Undone(mine, [change for change in changes if change.path in foreign], *kept)

    def _note_end(self, foreign: Set[str], then: Files) -> None:
        """As :meth:`note_end`; what is ``foreign`` stays so: it is listed as it was ``then``."""
        listed = {path: entry for path, entry in list_files(self.path).items() if path not in foreign}
        write_listing(self.place / ENDED, {**listed, **{path: then[path] for path in foreign if path in then}})

    @property
    def source(self) -> str:
        """Where the files from before the task are."""
        return str(self.place / COPIES)

    def _listing(self, name: str) -> Path:
        if not self.place.is_dir():
            raise SaveError(f"the files of {self.path} before the task are no longer kept")
        return self.place / name


def _paths_to_leave(foreign: Set[str], before: Files, now: Files) -> Set[str]:
    """The paths that undo leaves: ``foreign``, but for removed directories in which it restores a file.

    A file isn't restored where it would need the place of a directory with something foreign in it, or the directory of
    a foreign file.
    """
    restored = before.keys() - now.keys() - foreign
    needed = {above for path in restored for above in directories_above(path)} - now.keys()
    files = {path for path in foreign & now.keys() if not now[path].is_directory}
    holders = {above for path in foreign & now.keys() for above in directories_above(path)}
    return {
        *(foreign - needed),
        *(path for path in restored if not files.isdisjoint(directories_above(path))),
        *(path for path in holders & before.keys() if not before[path].is_directory),
    }


def real_directory(path: str) -> str:
    """The path of a directory without links; raises :class:`SaveError`."""
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise SaveError(f"{path}: no such directory")
    if real == "/":
        raise SaveError(f"{path}: this is the whole host: name the directory that the agent is to work on")
    return real
