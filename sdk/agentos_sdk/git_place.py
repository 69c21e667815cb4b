"""Whether git works in a jail whose workspace is a directory: it needs the repository, which may lie elsewhere."""

from __future__ import annotations

import os
import stat

MAX_LINK = 4096  # bytes of a .git that is a file


def describe_missing_repository(directory: str) -> str | None:
    """Why git won't work where only this directory is, and what to do; None: it will, or no git is there. Blocks."""
    directory = os.path.realpath(directory)
    git = os.path.join(directory, ".git")
    try:
        kind = os.lstat(git).st_mode
    except OSError:
        return _describe_parent(directory)
    if stat.S_ISLNK(kind):
        target = os.path.realpath(git)
    elif stat.S_ISREG(kind):
        target = _read_link(git, directory)
    else:
        return None
    if not target or os.path.commonpath([target, directory]) == directory:
        return None
    what = "a repository"
    if f"{os.sep}worktrees{os.sep}" in target:
        what = "a linked worktree of git"
    elif f"{os.sep}modules{os.sep}" in target:
        what = "a submodule of git"
    return (
        f"{directory} is {what} whose data is in {target}, which a jail with this directory lacks: git won't work "
        f"there. Use a clone (git clone --no-hardlinks {directory} COPY), or go without git"
    )


def _read_link(git: str, directory: str) -> str:
    """The directory that a .git file names; "" if it names none."""
    try:
        with open(os.open(git, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = os.fsdecode(file.read(MAX_LINK))
    except OSError:
        return ""
    name, _, path = text.partition(":")
    path = path.strip()
    return os.path.realpath(os.path.join(directory, path)) if name == "gitdir" and path and "\0" not in path else ""


def _describe_parent(directory: str) -> str | None:
    above = directory
    while (parent := os.path.dirname(above)) != above:
        above = parent
        if os.path.exists(os.path.join(above, ".git", "HEAD")) or os.path.isfile(os.path.join(above, ".git")):
            return (
                f"{directory} is in the git repository {above}, which a jail with this directory lacks: git won't work "
                f"there. Name {above} instead, or go without git"
            )
    return None
