"""A run: changes of a host directory, step by step, so that a crash at any point leaves each file as it was or whole.

1. *Staging*: what each step will put is made complete in one private directory at the top of the host's.
2. *Acting*: renames alone. A new entry is moved to a free name, a replacement is exchanged with what lies there, and
   what is removed is moved away: so what was there is looked at again before it is gone, and put back if the host has
   changed it in the last moment (a conflict).
3. *Keeping*: the staging directory has all now that was replaced or removed. It is moved into the run's own directory,
   for undo. Where it can't be, on another file system, copies of that are made before staging, and it is removed.

Before each part the run is written down and synced. A kernel that is killed leaves that record: before it acts nothing
has changed, and the run is dropped; from then on it is finished. The inode of what was staged tells which steps were
done. ``beneath`` keeps all of it below the directory, whatever is replaced by links meanwhile.
"""

import base64
import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import beneath, layers
from .beneath import Stamp, stamp_of
from .records import CannotApply, Look, Run, Step, read_run, write_run

LATE = "the host has changed it in the meantime"
CHANGED_BY_AGENT = "the agent has changed it since it was shown"
CHANGED_SINCE_KEPT = "what was kept of it has changed since: by another name, or by a program that had it open"
NO_PARENT = "its directory isn't there: apply that as well"
GONE = "it isn't there any more"
UNKEPT = "where the host's link leads isn't UTF-8: no undo could make it again"
_XATTRS = ("user.", "security.capability", "system.posix_acl_access", "system.posix_acl_default")


def perform(place: Path, run: Run, sources: Sequence[int]) -> None:
    """Do a run: files to put come from the first of these open directories that has them.

    What was there is kept in ``place``, in ``old``.

    A step that can't be done has a ``conflict`` afterwards. Raises :class:`CannotApply` or ``OSError`` with nothing
    changed.
    """
    write_run(place, run)
    with beneath.open_top(run.directory) as top:
        owner = os.fstat(top)
        try:
            os.mkdir(run.stage, 0o700, dir_fd=top)
            run.stage_inode = os.stat(run.stage, dir_fd=top, follow_symlinks=False).st_ino
            write_run(place, run)
            with _open_stage(top, run) as stage:
                _try_exchange(stage)
                run.moves = _try_move(stage, place)
                _save_all(place, run, top)
                for number, step in enumerate(run.steps):
                    _stage(sources, stage, str(number), step, (owner.st_uid, owner.st_gid))
            beneath.sync(top)
        except BaseException:
            _remove_stage(top, run)
            raise
        run.phase = "acting"
        write_run(place, run)
        _act_all(place, run, top)


def resume(place: Path) -> Run | None:
    """Finish a run whose kernel was killed, or drop it (None) if it had changed nothing yet."""
    try:
        run = read_run(place)
    except FileNotFoundError:
        return None
    with beneath.open_top(run.directory) as top:
        if run.phase == "done":
            _remove_stage(top, run)
            return run
        if run.phase == "staging":
            _remove_stage(top, run)
            return None
        _act_all(place, run, top)
    return run


def _act_all(place: Path, run: Run, top: int) -> None:
    try:
        with _open_acting(place, run, top) as stage:
            for number, step in enumerate(run.steps):
                if not step.conflict and not step.done:
                    _act(top, stage, str(number), step)
            if run.moves:
                _keep(place, run, top, stage)
    except FileNotFoundError:  # removed by the host after a crash, or by us: before the record was written as done
        for step in run.steps:
            found = beneath.look(top, step.path)
            step.done = step.act in ("remove", "rmdir") or (found is not None and found.st_ino == step.staged)
            step.conflict = "" if step.done else step.conflict or "the staging directory was removed"
            step.left = stamp_of(found) if found is not None and step.done else None
        (place / "old").mkdir(mode=0o700, exist_ok=True)
    beneath.sync(top)
    run.phase = "done"
    write_run(place, run)
    _remove_stage(top, run)


@contextlib.contextmanager
def _open_acting(place: Path, run: Run, top: int) -> Iterator[int]:
    """The staging directory, which a kernel that was killed may have moved."""
    with contextlib.ExitStack() as stack:
        try:
            stage = stack.enter_context(_open_stage(top, run))
        except FileNotFoundError:
            kept = stack.enter_context(beneath.open_top(str(place)))
            if not _is_kept(kept, run):
                raise
            stage = stack.enter_context(beneath.open_directory(kept, "old"))
        yield stage


def _is_kept(kept: int, run: Run) -> bool:
    found = _stat(kept, "old")
    return found is not None and found.st_ino == run.stage_inode


def _keep(place: Path, run: Run, top: int, stage: int) -> None:
    """Move the staging directory, with what was replaced, to ``old``. ``FileNotFoundError`` if it isn't there."""
    for number, step in enumerate(run.steps):
        if step.conflict and (there := _stat(stage, str(number))) is not None:
            beneath.remove(stage, str(number), there)
    with beneath.open_top(str(place)) as kept:
        if _is_kept(kept, run):
            return
        beneath.move(top, run.stage, kept, "old")
        if not _is_kept(kept, run):  # another user of the host's has replaced it in this moment
            beneath.move(kept, "old", top, run.stage)
            raise FileNotFoundError(errno.ENOENT, "replaced by another user", run.stage)


@contextlib.contextmanager
def _open_stage(top: int, run: Run) -> Iterator[int]:
    """The staging directory, which must be ours: in the host's directory another user may have replaced it."""
    with beneath.open_directory(top, run.stage) as stage:
        found = os.fstat(stage)
        if found.st_ino != run.stage_inode or found.st_uid != os.geteuid():
            raise FileNotFoundError(errno.ENOENT, "replaced by another user", run.stage)
        yield stage


def _remove_stage(top: int, run: Run) -> None:
    """Remove the staging directory; what another user has put in its place stays, unless it is empty."""
    with contextlib.suppress(FileNotFoundError), _open_stage(top, run) as stage:
        beneath.empty_tree(stage)
    with contextlib.suppress(OSError):
        os.rmdir(run.stage, dir_fd=top)


def _save_all(place: Path, run: Run, top: int) -> None:
    if not run.moves:
        (place / "old").mkdir(mode=0o700)
    for number, step in enumerate(run.steps):
        _save(top, None if run.moves else place / "old" / str(number), step)
    if not run.moves:
        with beneath.open_top(str(place)) as saved:
            beneath.sync(saved)


def _save(top: int, copy: Path | None, step: Step) -> None:
    """Look at what a step will replace or remove, and copy it, if there is a path for the copy."""
    if step.expected is None or step.conflict:
        return
    found = beneath.look(top, step.path)
    if found is None or not _is_expected(found, step.expected):
        step.conflict = GONE if found is None else LATE
        return
    step.saved = saved = Look(stat.S_IMODE(found.st_mode), found.st_mtime_ns, (found.st_uid, found.st_gid))
    try:
        if stat.S_ISLNK(found.st_mode):
            with beneath.open_parent(top, step.path) as (parent, name):
                saved.target = os.readlink(name, dir_fd=parent)
            if beneath.has_bytes(saved.target):
                saved.target, step.conflict = "", UNKEPT
        elif stat.S_ISREG(found.st_mode) and copy is None:
            _check_readable(top, step.path)
        elif stat.S_ISREG(found.st_mode) and copy is not None:
            with beneath.open_file(top, step.path) as file, open(copy, "xb", buffering=0) as target:
                saved.xattrs = _read_xattrs(file)
                step.kept = beneath.copy(file, target.fileno())
                if stamp_of(os.fstat(file)) != step.expected:
                    step.conflict = LATE
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        step.conflict = error.strerror or str(error)


def _check_readable(top: int, path: str) -> None:
    """Raise ``PermissionError`` where an undo couldn't read it."""
    if os.geteuid() != 0:
        with beneath.open_file(top, path):
            pass


def _is_expected(found: os.stat_result, expected: Stamp) -> bool:
    if stat.S_ISDIR(expected.mode):  # what is in it is looked at by itself
        return (found.st_ino, found.st_mode) == (expected.inode, expected.mode)
    return stamp_of(found) == expected


def _read_xattrs(fd: int) -> dict[str, str]:
    names = [name for name in os.listxattr(fd) if name.startswith(_XATTRS)]
    return {name: base64.b64encode(os.getxattr(fd, name)).decode() for name in names}


def _try_exchange(stage: int) -> None:
    """Find out whether names can be exchanged here: NFS, for one, can't."""
    for name in ("x", "y"):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=stage))
    try:
        beneath.exchange(stage, "x", stage, "y")
    except OSError as error:
        raise CannotApply(f"its file system can't exchange names (renameat2: {error.strerror})") from None
    for name in ("x", "y"):
        os.unlink(name, dir_fd=stage)


def _try_move(stage: int, place: Path) -> bool:
    """Find out whether what is in the staging directory can be moved to the run's own."""
    os.mkdir("x", 0o700, dir_fd=stage)
    with beneath.open_top(str(place)) as own:
        try:
            beneath.move(stage, "x", own, "x")
        except OSError:
            os.rmdir("x", dir_fd=stage)
            return False
        os.rmdir("x", dir_fd=own)
    return True


def _stage(sources: Sequence[int], stage: int, name: str, step: Step, owner: tuple[int, int]) -> None:
    """Make what a step will put, complete, under its number."""
    if step.conflict or step.act not in ("mkdir", "put"):
        return
    look, owner = step.look, step.look.owner or owner
    if step.act == "mkdir":
        os.mkdir(name, 0o700, dir_fd=stage)
        _give(name, owner, stage)
        os.chmod(name, look.mode, dir_fd=stage)
    elif not step.source:
        os.symlink(look.target, name, dir_fd=stage)
        _give(name, owner, stage)
    else:
        try:
            with layers.open_file(sources, step.source) as file:
                _stage_file(file, stage, name, step, owner)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            step.conflict = CHANGED_BY_AGENT if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            return
    step.staged = os.stat(name, dir_fd=stage, follow_symlinks=False).st_ino


def _give(name: str, owner: tuple[int, int], stage: int) -> None:
    if os.geteuid() == 0:  # another user's files are its own
        os.chown(name, *owner, dir_fd=stage, follow_symlinks=False)


def _stage_file(file: int, stage: int, name: str, step: Step, owner: tuple[int, int]) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(name, flags, 0o600, dir_fd=stage)
    try:
        content, xattrs = beneath.copy(file, target), step.look.xattrs
        if step.origin is not None:
            xattrs = _read_xattrs(file)
            if not stamp_of(os.fstat(file)).is_same_renamed(step.origin):
                step.conflict = CHANGED_SINCE_KEPT
                return
        elif content != step.content:
            step.conflict = CHANGED_BY_AGENT
            return
        _give(name, owner, stage)
        for attribute, value in xattrs.items():
            os.setxattr(target, attribute, base64.b64decode(value))
        os.fchmod(target, step.look.mode)
        os.utime(target, ns=(step.look.mtime, step.look.mtime))
    finally:
        os.close(target)


def _act(top: int, stage: int, number: str, step: Step) -> None:
    """Do one step, or find that it is done; afterwards it is ``done`` or has a ``conflict``.

    After a crash a later step may have put a file in the place of a directory from which this one has removed a name.
    """
    try:
        if step.act == "remove" and (there := _stat(stage, number)) is not None and _is_moved(there, step):
            step.done = True
            return
        with beneath.open_parent(top, step.path) as (parent, name):
            match step.act:
                case "put" | "mkdir":
                    _act_put(parent, name, stage, number, step)
                case "remove":
                    _act_remove(parent, name, stage, number, step)
                case "rmdir":
                    os.rmdir(name, dir_fd=parent)
                case "chmod":
                    _act_chmod(parent, name, step)
            left = _stat(parent, name) if step.act not in ("remove", "rmdir") else None
            step.left = stamp_of(left) if left is not None else None
    except OSError as error:
        if step.act == "rmdir" and error.errno in (errno.ENOENT, errno.ENOTDIR):
            step.done = True
            return
        texts = {errno.EEXIST: LATE, errno.ENOENT: GONE if step.expected else NO_PARENT, errno.ENOTDIR: NO_PARENT}
        texts |= {errno.ENOTEMPTY: "the directory isn't empty", errno.EXDEV: "another file system is mounted there"}
        step.conflict = texts.get(error.errno or 0) or error.strerror or str(error)
    step.done = not step.conflict


def _act_put(parent: int, name: str, stage: int, number: str, step: Step) -> None:
    there = _stat(stage, number)
    if there is not None and there.st_ino == step.staged:
        if step.expected is None:
            beneath.move(stage, number, parent, name)
            return
        beneath.exchange(stage, number, parent, name)
        there = _stat(stage, number)
    if step.expected is None or there is None:  # done before a crash, or taken away
        now = _stat(parent, name)
        step.conflict = "" if now is not None and now.st_ino == step.staged else LATE
    elif not _was_expected(stage, number, there, step.expected):
        beneath.exchange(stage, number, parent, name)  # what the host has made in the last moment goes back
        step.conflict = LATE


def _act_remove(parent: int, name: str, stage: int, number: str, step: Step) -> None:
    if _stat(stage, number) is None:
        beneath.move(parent, name, stage, number)
    if (there := _stat(stage, number)) is None or not _is_moved(there, step):
        beneath.move(stage, number, parent, name)
        step.conflict = LATE


def _is_moved(there: os.stat_result, step: Step) -> bool:
    """Whether what was moved away is the file or the link that was looked at."""
    return step.expected is not None and stamp_of(there).is_same_renamed(step.expected)


def _was_expected(stage: int, number: str, there: os.stat_result, expected: Stamp) -> bool:
    """Whether what was moved away is what was looked at; a directory must be empty."""
    if stat.S_ISDIR(there.st_mode):
        with beneath.open_directory(stage, number) as directory:
            return there.st_ino == expected.inode and not os.listdir(directory)
    return stamp_of(there).is_same_renamed(expected)


def _act_chmod(parent: int, name: str, step: Step) -> None:
    """Change a directory's mode; its set-id and sticky bits stay."""
    assert step.expected is not None, "it was looked at"
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        now = os.fstat(fd)
        if now.st_ino != step.expected.inode or now.st_mode not in (step.expected.mode, _directory_mode(step)):
            step.conflict = LATE
        else:
            os.fchmod(fd, stat.S_IMODE(_directory_mode(step)))
    finally:
        os.close(fd)


def _directory_mode(step: Step) -> int:
    assert step.expected is not None, "it was looked at"
    return step.expected.mode & ~0o777 | step.look.mode & 0o777


def _stat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
