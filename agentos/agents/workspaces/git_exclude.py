"""Git's exclude file: keeps stubs in a workspace out of ``git status`` and ``git add -A`` of the repository around it.

Their names are a marked block in ``info/exclude``, which belongs to one copy of a repository and is never committed;
with worktrees it is that of the common directory. Blocking: called in threads.

An agent may be able to write to all of this: no symlink is followed, and only a plain file is replaced, in a real
repository of the workspace's owner. Two kernels that change the same file at once may lose one change: then stubs are
shown, or a block stays until the directory is a workspace again.
"""

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from agentos.sandbox.inside import libc

MAX_BYTES = 1 << 20
BEGIN, END = "# agentos: empty files in {}, removed with these lines\n", "# agentos: end\n"
SPECIAL = re.compile(r"[\\*?\[ ]")  # what a pattern of git's must escape
NEW = "exclude.agentos"  # beside the file until it replaces it


def update_block(directory: str, names: Sequence[str]) -> None:
    """Hide these names in a directory from git, instead of those hidden there before; ``OSError`` if that fails.

    Does nothing where the directory is in no repository.
    """
    found = find_repository(directory)
    if found is None or "\n" in directory:
        return
    top, common = found
    if not all(os.path.isdir(os.path.join(common, name)) for name in ("objects", "refs")):
        raise FileNotFoundError(f"{common} is no repository")  # an agent may have written its path
    below = os.path.relpath(directory, top)
    patterns = ["/" + SPECIAL.sub(r"\\\g<0>", os.path.normpath(os.path.join(below, name))) for name in names]
    info = libc.open_without_links(libc.AT_FDCWD, f"{common}/info", os.O_DIRECTORY)
    try:
        owner = os.fstat(info)
        if owner.st_uid != os.stat(directory).st_uid:
            raise PermissionError(f"{common}/info belongs to another user")
        before = _read(info)
        after = replace_block(before, BEGIN.format(directory), patterns)
        if after != before:
            _write(info, after, owner)
    finally:
        os.close(info)


def find_repository(directory: str) -> tuple[str, str] | None:
    """The top of the work tree around a directory, and the repository's common directory."""
    for top in (directory, *map(str, Path(directory).parents)):
        git = os.path.join(top, ".git")
        if os.path.islink(git):
            return None
        if os.path.isfile(os.path.join(git, "HEAD")):
            return top, os.path.realpath(git)
        if os.path.isfile(git):  # of a worktree or a submodule
            own = os.path.join(top, read_first_line(git).removeprefix("gitdir:").strip())
            common = os.path.join(own, read_first_line(os.path.join(own, "commondir")))
            return (top, os.path.realpath(common)) if os.path.isfile(os.path.join(own, "HEAD")) else None
    return None


def replace_block(text: str, begin: str, patterns: Sequence[str]) -> str:
    """The text of an exclude file with these patterns in the block that begins with this line, or without the block."""
    before, found, rest = text.partition(begin)
    if found:
        text = before + rest.partition(END)[2]
    if not patterns:
        return text
    if text and not text.endswith("\n"):
        text += "\n"
    return text + begin + "".join(f"{pattern}\n" for pattern in patterns) + END


def read_first_line(path: str) -> str:
    """The first line of a plain file, up to a NUL; empty if there is none. Never waits for a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        data = os.read(fd, 4096) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    return os.fsdecode(data).partition("\n")[0].partition("\0")[0]


def _read(info: int) -> str:
    """The text of ``exclude`` in a directory; empty if there is no such file."""
    try:
        fd = os.open("exclude", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=info)
    except FileNotFoundError:
        return ""
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise OSError("info/exclude is no plain file of at most 1 MiB")
        return os.fsdecode(file.read(MAX_BYTES))


def _write(info: int, text: str, owner: os.stat_result) -> None:
    """Replace ``exclude`` in a directory; a file without text is removed."""
    if not text:
        os.unlink("exclude", dir_fd=info)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(NEW, dir_fd=info)
    fd = os.open(NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=info)
    with open(fd, "wb") as file:
        file.write(os.fsencode(text))
        if os.geteuid() == 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)
    os.replace(NEW, "exclude", src_dir_fd=info, dst_dir_fd=info)
