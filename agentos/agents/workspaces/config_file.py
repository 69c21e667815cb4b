"""The kernel's configuration file where agents work beside it: read-only to them, and read again only if it stayed so.

An agent that could write to this file would give itself all rights of the kernel's user, by a child without a jail. At
the top of a workspace the file is a protected name like others (:mod:`protected_files`). Further down it can't be
protected, because an agent can rename the directories that lead to it; such a workspace is refused.

A file that the host replaces while an agent works beside it, as editors do that save by renaming, is not protected
until the kernel has ended that agent. What is in it then may be the agent's, so the next reload is refused, once.
"""

import os
from collections.abc import Collection, Iterator, Sequence

MAX_LINKS = 40  # symlinks that Linux follows in one path


class Unprotected(Exception):
    """An agent may have written to the configuration file; the text says why, and what to do."""


class ConfigFile:
    """The configuration file of one kernel; ``path`` is absolute, None for a kernel without one. Methods block."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._workspaces: list[str] = []  # in use, that it is in
        self._known: int | None = None  # while agents may have replaced it: the file that it was before, held open

    def find_protected(self, workspace: str) -> Sequence[str]:
        """The names at the top of a workspace that lead to the file. Raises :class:`Unprotected` for a deeper one."""
        names = self.leads_by(workspace)
        if any("/" in name for name in names):
            raise Unprotected(
                f"{self.path}, the kernel's configuration file, is in a directory of it, which an agent could "
                "replace: name a directory without that file, or the one that the file is in"
            )
        return names

    def leads_by(self, workspace: str) -> Sequence[str]:
        """The paths within a workspace that Linux reads to open the file."""
        entries = list_entries(self.path) if self.path is not None else ()
        inside = [entry for entry in entries if entry != workspace and entry.startswith(os.path.join(workspace, ""))]
        return [os.path.relpath(entry, workspace) for entry in inside]

    def hold(self, workspace: str) -> None:
        """Note that an agent begins to use a workspace that the file is in."""
        if self._known is None:
            self._known = self._open()
        self._workspaces.append(workspace)

    def release(self, workspace: str) -> None:
        """Note that an agent has ended."""
        if workspace in self._workspaces:
            self._workspaces.remove(workspace)
            if not self._workspaces and not self._was_replaced():
                self._forget()

    def check_protected(self, writers: Collection[str]) -> None:
        """Raise :class:`Unprotected` if the file was replaced while agents worked beside it, for each new file once.

        ``writers`` are agents that could write to it when it was about to be read.
        """
        was_replaced = self._was_replaced()
        if was_replaced:
            self._forget()
            self._known = self._open() if self._workspaces else None
        if writers:
            raise Unprotected(
                f"{self.path} was replaced, and {', '.join(sorted(writers))}, in whose workspace it is, can write to "
                "the new file until the kernel ends it: look at the file, then reload again"
            )
        if was_replaced:
            raise Unprotected(
                f"{self.path} was replaced, not written in place, and agents in whose workspace it is could write to "
                "the new file until the kernel ended them: look at the file, then reload again"
            )

    def _was_replaced(self) -> bool:
        """Whether it is another file than before agents worked beside it."""
        if self._known is None or self.path is None:
            return False
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._known))
        except OSError:
            return True

    def _open(self) -> int | None:
        """A file descriptor, as long as which no other file gets this one's inode number."""
        try:
            return os.open(self.path, os.O_PATH | os.O_CLOEXEC) if self.path is not None else None
        except OSError:
            return None

    def _forget(self) -> None:
        if self._known is not None:
            os.close(self._known)
            self._known = None


def list_entries(path: str) -> Iterator[str]:
    """Each directory entry that Linux reads to open an absolute path, behind symlinks too, as a real path. Blocks."""
    place, rest, links = "/", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)
            continue
        entry = os.path.join(place, name)
        yield entry
        try:
            target = os.readlink(entry)
        except OSError:  # no symlink, or nothing
            place = entry
            continue
        links += 1
        if links > MAX_LINKS:
            return
        if target.startswith("/"):
            place = "/"
        rest += target.split("/")[::-1]
