"""Sources that only the zygote can open for its child: detached copies of mounts, and file systems of images.

The child receives their descriptors and mounts them in its root. In its own user namespace its capabilities don't apply
to host files: it can't open a script in a home of mode 0700 that its host uid can't. Nothing of this appears in the
host's mount table, and all of it is freed with the last descriptor or mount.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import struct
from collections.abc import Sequence

from agentos.sandbox import steps as s

from . import libc

_NEWUSER = 0x1000_0000
MOUNT_ATTR_RDONLY = 1
_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE, _LO_FLAGS_AUTOCLEAR = 0x4C0A, 0x4C82, 4
_LOOP_CONFIG_SIZE, _LOOP_FLAGS_OFFSET = 304, 60  # struct loop_config: u32 fd, u32 block size, struct loop_info64
_ATTEMPTS = 16  # another process may take the free loop device first


class SourceFailed(Exception):
    """A source could not be opened or mounted."""

    def __init__(self, step: s.Step, error: OSError) -> None:
        super().__init__(str(error))
        self.step, self.error = step, error


Trees = dict[str, int]  # detached mounts by target


def detach_all(steps: Sequence[s.Step], namespaces: "Namespaces") -> Trees:
    """Open the sources of these steps, all or none (:class:`SourceFailed`); :func:`close_trees` after the clone."""
    trees: Trees = {}
    with contextlib.closing(namespaces):
        for step in steps:
            try:
                if isinstance(step, s.DetachRoot):
                    options = {"size": str(step.size), "nr_inodes": str(step.inodes), "mode": "755"}
                    trees["/"] = libc.mount_detached("tmpfs", "agent", options)
                elif isinstance(step, s.DetachSource):
                    trees[step.target] = _detach_source(step, namespaces)
                elif isinstance(step, s.DetachImage):
                    trees[step.target] = _detach_image(step, namespaces)
                elif isinstance(step, s.DetachLayer):
                    trees[step.target] = _detach_layer(step, namespaces)
            except OSError as error:
                close_trees(trees)
                raise SourceFailed(step, error) from None
    return trees


def close_trees(trees: Trees) -> None:
    while trees:
        os.close(trees.popitem()[1])


def open_source(path: str, follow: bool) -> int:
    """Open a path as O_PATH; later changes of the path have no effect."""
    try:
        if follow:
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
        return libc.open_without_links(libc.AT_FDCWD, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def mount_image(path: str) -> int:
    """Mount the file system of an image, detached. ``EWOULDBLOCK`` if it is still in use.

    The lock belongs to the open file, which the loop device keeps open. So there can't be a second device with its own
    cache, and the lock is released with the device.
    """
    image = open_locked(path)
    try:
        loop, name = _attach_loop_device(image)
        try:
            return libc.mount_detached("ext4", name)
        finally:
            os.close(loop)  # LO_FLAGS_AUTOCLEAR detaches the device at the unmount
    finally:
        os.close(image)


def open_locked(path: str) -> int:
    """Open an image and lock it exclusively."""
    image = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(image, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(image)
        raise OSError(error.errno, error.strerror, path) from None
    return image


def _attach_loop_device(image: int) -> tuple[int, str]:
    """Attach the file to a loop device; returns it and its name. It is detached after the last close or unmount."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            name = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            loop = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            configuration = bytearray(_LOOP_CONFIG_SIZE)
            struct.pack_into("=I", configuration, 0, image)
            struct.pack_into("=I", configuration, _LOOP_FLAGS_OFFSET, _LO_FLAGS_AUTOCLEAR)
            try:
                fcntl.ioctl(loop, _LOOP_CONFIGURE, bytes(configuration))
                return loop, name
            except OSError as error:
                os.close(loop)
                if error.errno != errno.EBUSY:
                    raise OSError(error.errno, error.strerror, name) from None
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), "/dev/loop-control")
    finally:
        os.close(control)


def _detach_source(step: s.DetachSource, namespaces: "Namespaces") -> int:
    if step.follow and step.owner is None:  # shown with its own owner
        try:
            return libc.open_tree(libc.AT_FDCWD, step.path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, step.path) from None
    source = open_source(step.path, step.follow)
    try:
        found = os.stat(source)
        tree = libc.open_tree(source)
    finally:
        os.close(source)
    try:
        if step.owner == s.UNKNOWN_OWNER and not _is_accessible_to_others(found, step.writable):
            raise OSError(errno.EACCES, "not readable by others", step.path)
        if step.owner not in (None, s.UNKNOWN_OWNER) and _needs_mapping(step, found):
            _map_owner(tree, step, found, namespaces)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _detach_layer(step: s.DetachLayer, namespaces: "Namespaces") -> int:
    source = open_source(step.path, follow=False)
    try:
        found, tree = os.stat(source), libc.open_tree(source)
    finally:
        os.close(source)
    try:
        _show_as_own(tree, step, found, namespaces, "apply or discard the changes that it has as another user")
        if not step.writable:
            libc.set_mount_attributes(tree, "", MOUNT_ATTR_RDONLY, recursive=True)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _detach_image(step: s.DetachImage, namespaces: "Namespaces") -> int:
    tree = mount_image(step.path)
    try:
        _show_as_own(tree, step, os.stat(tree), namespaces, "move it away: it was begun without root inside")
    except BaseException:
        os.close(tree)
        raise
    return tree


def _show_as_own(
    tree: int, step: s.DetachLayer | s.DetachImage, found: os.stat_result, namespaces: "Namespaces", fix: str
) -> None:
    """Map the owner of what is at the top, or the block that it is in, to that of the step."""
    owner, is_written = (found.st_uid, found.st_gid), isinstance(step, s.DetachImage) or step.writable
    first, count = step.block if step.block is not None else (0, 0)
    is_in_block = all(first <= each < first + count for each in owner)
    if step.block is not None and is_written and not is_in_block:
        why = f"{step.path}: files of root inside would have ids of the host's there: {fix}"
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), why)
    if owner != step.owner:
        owner, count = ((first, first), count) if is_in_block else (owner, 1)
        uids, gids = (_swap(owner[n], step.owner[n], count, name) for n, name in enumerate(("uid_map", "gid_map")))
        _map_ids(tree, step, is_written, found, namespaces.get(uids, gids))


def _swap(one: int, other: int, count: int, name: str) -> str:
    """The lines of a map of all ids of this process that exchanges ``count`` from ``one`` and from ``other`` on.

    All others stay valid owners: Linux refuses even the removal of a file whose owner isn't mapped. ``name``: uid_map
    or gid_map.
    """
    with open(f"/proc/self/{name}", encoding="ascii") as file:
        own = [tuple(map(int, line.split())) for line in file]
    lines = []
    for first, _, size in own:
        cuts = sorted({first, first + size, *(cut for i in (one, other) for cut in (i, i + count))})
        for start, end in itertools.pairwise(cut for cut in cuts if first <= cut <= first + size):
            shown = other if start == one else one if start == other else start
            lines.append(f"{start} {shown} {end - start}")
    return "\n".join(lines)


def _needs_mapping(step: s.DetachSource, found: os.stat_result) -> bool:
    return (found.st_uid, found.st_gid) != step.owner and (
        step.always or not _is_accessible_to_others(found, step.writable)
    )


def _is_accessible_to_others(found: os.stat_result, writable: bool) -> bool:
    needed = (0o005 if stat.S_ISDIR(found.st_mode) else 0o004) | (0o002 if writable else 0)
    return found.st_mode & needed == needed


def _map_owner(tree: int, step: s.DetachSource, found: os.stat_result, namespaces: "Namespaces") -> None:
    """Set an id-mapping on the mount. If its file system can't do that, a path closed to others is an error."""
    assert step.owner is not None
    uids, gids = (f"{ours} {theirs} 1" for ours, theirs in zip((found.st_uid, found.st_gid), step.owner, strict=True))
    _map_ids(tree, step, step.writable, found, namespaces.get(uids, gids))


def _map_ids(
    tree: int,
    step: s.DetachSource | s.DetachLayer | s.DetachImage,
    writable: bool,
    found: os.stat_result,
    namespace: int,
) -> None:
    assert step.owner is not None
    try:
        libc.set_mount_attributes(tree, "", libc.MOUNT_ATTR_IDMAP, recursive=True, user_namespace=namespace)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM) or not _is_accessible_to_others(found, writable):
            fix = f"chown it to {step.owner[0]}:{step.owner[1]} or move it to ext4"
            why = f"{step.path} (its files can't be mapped to another user: {fix})"
            raise OSError(error.errno, error.strerror, why) from None


class Namespaces:
    """User namespaces for id-mapped mounts; no program runs in them. Once one was needed, the next waits without maps.

    To make one takes 2 ms, and to give it its maps 0.3 ms.
    """

    def __init__(self) -> None:
        self._mapped: dict[tuple[str, str], int] = {}  # for the mounts of this request
        self._waiting: _Unmapped | None = None
        self._used: list[_Unmapped] = []  # whose processes have yet to end

    def get(self, uid_map: str, gid_map: str) -> int:
        if (uid_map, gid_map) not in self._mapped:
            self._mapped[uid_map, gid_map] = self._map(uid_map, gid_map)
        return self._mapped[uid_map, gid_map]

    def _map(self, uid_map: str, gid_map: str) -> int:
        if self._waiting is not None:
            self._used.append(self._waiting)
            self._waiting = None
            with contextlib.suppress(OSError):  # its process was killed
                return self._used[-1].map(uid_map, gid_map)
        self._used.append(_Unmapped())
        return self._used[-1].map(uid_map, gid_map)

    def close(self) -> None:
        """Close the namespaces of this request: the mounts keep theirs."""
        while self._mapped:
            os.close(self._mapped.popitem()[1])
        while len(self._used) > 1:
            self._used.pop().end()

    def build_ahead(self) -> None:
        """Make the next one, if one was needed. Call it while nothing waits for an answer."""
        if self._used:
            self._used.pop().end()
            with contextlib.suppress(OSError):  # the next request reports it
                self._waiting = self._waiting or _Unmapped()


class _Unmapped:
    """A user namespace without maps, and a process in it that waits to end: our descriptor keeps the mapped one."""

    def __init__(self) -> None:
        ready, ready_writer = os.pipe2(os.O_CLOEXEC)
        wait, self._go = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                libc.keep_only(ready_writer, wait)
                libc.unshare(_NEWUSER)
                os.write(ready_writer, b"!")
                os.read(wait, 1)
            finally:
                os._exit(0)
        os.close(ready_writer)
        os.close(wait)
        is_ready = os.read(ready, 1)
        os.close(ready)
        if not is_ready:
            self.end()
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), "unshare")

    def map(self, uid_map: str, gid_map: str) -> int:
        """Write its maps, once; returns a descriptor of it."""
        for name, lines in (("gid_map", gid_map), ("uid_map", uid_map)):
            with open(f"/proc/{self._pid}/{name}", "w", encoding="ascii") as file:
                file.write(lines)
        return os.open(f"/proc/{self._pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._go, b"!")  # a jail that has just been cloned may have our end of the pipe, too
        os.close(self._go)
        os.waitpid(self._pid, 0)
