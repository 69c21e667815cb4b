"""The private root: a tmpfs that is filled with what was opened, and then becomes ``/``.

Where the tmpfs is mounted until then is our own mount namespace's affair; the host's directory of that name stays as
it is.
"""

import os
import stat

from agentos.sandbox import steps as s

from . import libc

NEW_ROOT = "/tmp"  # every host has it, and whatever lies there was opened before

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
MNT_DETACH = 2
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8  # MOUNT_ATTR_*


class Root:
    """The root in the making, and the sources that are opened for it."""

    def __init__(self) -> None:
        self._sources: dict[str, int] = {}

    def make_private(self) -> None:
        libc.mount("none", "/", None, MS_REC | MS_PRIVATE)

    def open_source(self, path: str) -> None:
        self._sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def close_sources(self) -> None:
        while self._sources:
            os.close(self._sources.popitem()[1])

    def mount(self, step: s.MountRoot) -> None:
        options = f"size={step.size},nr_inodes={step.inodes},mode=755"
        libc.mount("agent", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, options)

    def bind(self, step: s.Bind) -> None:
        source = self._sources[step.source]
        target = NEW_ROOT + step.target
        if stat.S_ISDIR(os.stat(source).st_mode):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        tree = libc.open_tree(source)
        try:
            attributes = NOSUID | (0 if step.writable else RDONLY) | (NOEXEC if step.device else NODEV)
            libc.set_mount_attributes(tree, "", attributes, recursive=True)
            libc.move_mount(tree, target)
        finally:
            os.close(tree)

    def mount_tmpfs(self, step: s.MountTmpfs) -> None:
        os.makedirs(NEW_ROOT + step.target, exist_ok=True)
        flags = MS_NOSUID | MS_NODEV | (0 if step.executable else MS_NOEXEC)
        options = f"size={step.size},nr_inodes={step.inodes},mode=755"
        libc.mount("agent", NEW_ROOT + step.target, "tmpfs", flags, options)

    def mount_proc(self, step: s.MountProc) -> None:
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        libc.mount("proc", NEW_ROOT + step.target, "proc", flags, "subset=pid")

    def make_directory(self, step: s.MakeDirectory) -> None:
        os.makedirs(NEW_ROOT + step.path, exist_ok=True)

    def write_file(self, step: s.WriteFile) -> None:
        fd = os.open(NEW_ROOT + step.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        with open(fd, "w") as file:
            file.write(step.text)

    def link(self, step: s.Link) -> None:
        os.symlink(step.target, NEW_ROOT + step.path)

    def switch(self) -> None:
        os.chdir(NEW_ROOT)
        libc.pivot_root(".", ".")
        libc.unmount(".", MNT_DETACH)  # the former root lay on top of the new one
        os.chdir("/")

    def make_read_only(self) -> None:
        libc.set_mount_attributes(libc.AT_FDCWD, "/", RDONLY | NOSUID | NODEV | NOEXEC, recursive=False)
