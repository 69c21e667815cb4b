"""Build the private root: a tmpfs that is filled with the opened sources, and then becomes ``/``.

Until then it is mounted at NEW_ROOT in our own mount namespace; the host's directory of that name is unchanged.
"""

import os
import stat
from collections.abc import Iterator

from agentos.sandbox import steps as s

from . import libc, sources

NEW_ROOT = "/sys"  # it exists on every host, and no source lies in it: an agent's are opened when this is mounted

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8  # MOUNT_ATTR_*


class Root:
    """The new root while it is built, and its sources, opened by this process or (``trees``) by the zygote."""

    def __init__(self, trees: sources.Trees) -> None:
        self._sources: dict[str, int] = {}
        self._trees = trees
        self.counted: dict[str, int] = {}  # descriptors of tmpfs mounts to be measured by the kernel
        self._existing = {""}  # directories of the new root; only these exist

    def make_private(self) -> None:
        libc.mount("none", "/", None, MS_REC | MS_PRIVATE)

    def open_source(self, step: s.OpenSource) -> None:
        if step.path in self._sources:
            os.close(self._sources.pop(step.path))
        self._sources[step.path] = sources.open_source(step.path, step.follow)

    def close_sources(self, _: s.CloseSources) -> None:
        while self._sources:
            os.close(self._sources.popitem()[1])
        sources.close_trees(self._trees)

    def mount(self, step: s.MountRoot) -> None:
        tree = self._trees.pop("/", None)
        if tree is not None:
            libc.move_mount(tree, NEW_ROOT)
            os.close(tree)
            return
        options = f"size={step.size},nr_inodes={step.inodes},mode=755"
        libc.mount("agent", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, options)

    def bind(self, step: s.Bind) -> None:
        target = NEW_ROOT + step.target
        tree = self._trees.pop(step.target, None)
        if tree is None:
            tree = libc.open_tree(self._sources[step.source])
        try:
            if stat.S_ISDIR(os.stat(tree).st_mode):
                self._make_directories(step.target)
            else:
                self._make_directories(step.target.rpartition("/")[0])
                os.mknod(target, stat.S_IFREG | 0o644)
            attributes = NOSUID | (0 if step.writable else RDONLY) | (0 if step.device else NODEV)
            attributes |= NOEXEC if step.device or not step.executable else 0
            libc.set_mount_attributes(tree, "", attributes, recursive=True)
            libc.move_mount(tree, target)
        finally:
            os.close(tree)

    def protect(self, step: s.Protect) -> None:
        """Make each name, and each directory on the path to it, a mount point, which can't be renamed from inside."""
        top = os.open(NEW_ROOT + step.directory, os.O_PATH | os.O_CLOEXEC)
        try:
            for name in _with_parents(step.names):
                _mount_on_itself(top, name, read_only=name in step.names)
        finally:
            os.close(top)

    def mount_tmpfs(self, step: s.MountTmpfs) -> None:
        self._make_directories(step.target)
        flags = MS_NOSUID | MS_NODEV | (0 if step.executable else MS_NOEXEC)
        options = f"size={step.size},nr_inodes={step.inodes},mode={'1777' if step.shared else '755'}"
        libc.mount("agent", NEW_ROOT + step.target, "tmpfs", flags, options)
        if step.counted:
            self.counted[step.target] = os.open(NEW_ROOT + step.target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def mount_overlay(self, step: s.MountOverlay) -> None:
        """Stage the layers in a tmpfs, under names that tell nothing of the host: mountinfo shows them as given.

        The overlay keeps clones of its own of the layers' mounts.
        """
        place = NEW_ROOT + step.target
        self._make_directories(step.target)
        libc.mount("stage", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k,nr_inodes=64,mode=755")
        os.chdir(place)
        lowers = (*(str(number) for number in range(1, len(step.lowers))), "lower")
        paths, targets = (*step.lowers, step.upper), s.layer_targets(step.target, len(lowers))
        for name, path, target in zip((*lowers, "upper"), paths, targets, strict=True):
            os.mkdir(name)
            tree = self._trees.pop(target, None)
            tree = libc.open_tree(self._sources[path]) if tree is None else tree
            try:
                libc.move_mount(tree, name)  # attached: Linux takes no detached tree for a layer
            finally:
                os.close(tree)
        layers = {"lowerdir": ":".join(lowers), "upperdir": "upper/tree", "workdir": "upper/work"}
        overlay = libc.mount_detached("overlay", "overlay", layers, "userxattr")
        _open_work()
        try:
            os.chdir("/")
            libc.detach(place)
            attributes = NOSUID | NODEV | (0 if step.executable else NOEXEC)
            libc.set_mount_attributes(overlay, "", attributes, recursive=False)
            libc.move_mount(overlay, place)
        finally:
            os.close(overlay)

    def mount_terminals(self, step: s.MountTerminals) -> None:
        options = f"newinstance,mode=600,ptmxmode=666,max={step.most}"
        libc.mount("agent", NEW_ROOT + step.target, "devpts", MS_NOSUID | MS_NOEXEC, options)

    def mount_image(self, step: s.MountImage) -> None:
        """Stage the layers as for an overlay: on top a directory with the mount points, which no image must have."""
        carried = {target: libc.open_tree(libc.AT_FDCWD, NEW_ROOT + target) for target in step.carried}
        stage = f"{NEW_ROOT}/run"
        libc.mount("stage", stage, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=1m,nr_inodes=512,mode=755")
        os.chdir(stage)
        for directory in ("own", "owned", "image", "upper"):
            os.mkdir(directory)
        _fill_own({target: stat.S_ISDIR(os.stat(tree).st_mode) for target, tree in carried.items()}, step)
        tree = self._trees.pop(s.IMAGE, None)
        tree = libc.open_tree(self._sources[step.source]) if tree is None else tree
        libc.move_mount(tree, "image")
        os.close(tree)
        owned = self._trees.pop(s.IMAGE_OWNED, None)
        if owned is not None:
            libc.move_mount(owned, "owned")
            os.close(owned)
        layers = {"lowerdir": "own:image" if owned is None else "own:owned:image"}
        if step.upper:
            tree = self._trees.pop(s.IMAGE_UPPER, None)
            tree = libc.open_tree(self._sources[step.upper]) if tree is None else tree
            libc.move_mount(tree, "upper")
            os.close(tree)
            layers |= {"upperdir": "upper/tree", "workdir": "upper/work"}
        elif step.size:
            layers |= self._mount_upper(step)
        overlay = libc.mount_detached("overlay", "image", layers, "userxattr")
        if step.upper:
            _open_work()
        os.chdir("/")
        libc.detach(stage)
        libc.set_mount_attributes(overlay, "", NOSUID | NODEV | (0 if step.size else RDONLY), recursive=False)
        libc.move_mount(overlay, NEW_ROOT)  # over the former root, which goes with the host's
        os.close(overlay)
        for target, tree in carried.items():
            if target in step.closed:
                libc.set_mount_attributes(tree, "", RDONLY, recursive=True)
            libc.move_mount(tree, NEW_ROOT + target)
            os.close(tree)

    def _mount_upper(self, step: s.MountImage) -> dict[str, str]:
        options = f"size={step.size},nr_inodes={step.inodes},mode=755"
        libc.mount("agent", "upper", "tmpfs", MS_NOSUID | MS_NODEV, options)
        try:
            os.setxattr("upper", "user.agentos", b"")  # without them a removed directory can't be made again
        except OSError as error:
            why = "a tmpfs takes no attributes here (Linux has them from 6.6 on, with CONFIG_TMPFS_XATTR)"
            fix = 'say isolation = "strict", which has images read-only'
            raise OSError(error.errno, error.strerror, f"{why}: {fix}") from None
        for directory in ("upper/tree", "upper/work"):
            os.mkdir(directory)
        if step.counted:
            self.counted["/"] = os.open("upper", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return {"upperdir": "upper/tree", "workdir": "upper/work"}

    def mount_proc(self, step: s.MountProc) -> None:
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        libc.mount("proc", NEW_ROOT + step.target, "proc", flags, "subset=pid")

    def make_directory(self, step: s.MakeDirectory) -> None:
        self._make_directories(step.path)

    def _make_directories(self, path: str) -> None:
        if path not in self._existing:
            self._make_directories(path.rpartition("/")[0])
            os.mkdir(NEW_ROOT + path)
            self._existing.add(path)

    def write_file(self, step: s.WriteFile) -> None:
        fd = os.open(NEW_ROOT + step.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, step.text.encode())
        finally:
            os.close(fd)

    def link(self, step: s.Link) -> None:
        self._make_directories(step.path.rpartition("/")[0])
        os.symlink(step.target, NEW_ROOT + step.path)

    def switch(self, _: s.SwitchRoot) -> None:
        os.chdir(NEW_ROOT)
        libc.pivot_root(".", ".")
        libc.detach(".")  # the former root lies on top of the new one
        os.chdir("/")

    def make_read_only(self, _: s.ReadOnlyRoot) -> None:
        libc.set_mount_attributes(libc.AT_FDCWD, "/", RDONLY | NOSUID | NODEV | NOEXEC, recursive=False)


def _open_work() -> None:
    """Let its owner enter a directory that Linux makes for the overlay without permissions: `rm -r` fails there."""
    os.chmod("upper/work/work", 0o700)


def _fill_own(carried: dict[str, bool], step: s.MountImage) -> None:
    """Make the mount points, directories and files that an image has of the sandbox's own, in ``own``."""
    for target, is_directory in carried.items():
        os.makedirs("own" + (target if is_directory else os.path.dirname(target)), 0o755, exist_ok=True)
        if not is_directory:
            os.mknod(f"own{target}", stat.S_IFREG | 0o644)
    for directory in step.directories:
        os.makedirs(f"own{directory}", 0o755, exist_ok=True)
        os.chmod(f"own{directory}", 0o1777 if directory == "/tmp" else 0o755)
    for path, text in step.files:
        os.makedirs("own" + os.path.dirname(path), 0o755, exist_ok=True)
        with open(f"own{path}", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"own/dev/{name}")
    os.symlink("pts/ptmx", "own/dev/ptmx")


def _with_parents(names: tuple[str, ...]) -> Iterator[str]:
    """Yield names and their parents, parents first: a mount over a directory hides the mounts in it."""
    parents = {name[:place] for name in names for place, letter in enumerate(name) if letter == "/"}
    yield from sorted({*parents, *names}, key=lambda name: (name.count("/"), name))


def _mount_on_itself(top: int, name: str, read_only: bool) -> None:
    try:
        here = libc.open_without_links(top, name, os.O_NOFOLLOW, libc.RESOLVE_BENEATH)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    try:
        tree = libc.open_tree(here)
        try:
            if read_only:
                libc.set_mount_attributes(tree, "", RDONLY, recursive=True)
            libc.move_mount_onto(tree, here)
        finally:
            os.close(tree)
    finally:
        os.close(here)
