"""Trees of files that a build makes: clones by hard links, and what a program has changed, merged into one.

No file of a tree is ever written to again, so trees share files. Everything blocks.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from agentos.images.errors import BadArchive
from agentos.images.owners import CAPABILITY, Owners
from agentos.sandbox.files import openat2
from agentos.sandbox.host_ids import STORE_IDS
from agentos.services.snapshots import beneath, layers

OF_THE_JAIL = ("proc", "sys", "dev", "sdk", "agent", "workspace")  # at the top: what a jail has there is its own
_JAIL_FILES = ("etc/hosts", "etc/resolv.conf", "run/agentos.sock")


def clone(source: int, target: int) -> None:
    """Fill an empty directory with all of another one: directories of its own, and the same files."""
    for here, there in _walk_both(source, target):
        with os.scandir(here) as found:
            entries = [(one.name, one.is_dir(follow_symlinks=False)) for one in found]
        for name, is_directory in entries:
            if is_directory:
                os.mkdir(name, 0o700, dir_fd=there)
            else:
                os.link(name, name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)


def _walk_both(source: int, target: int) -> Iterator[tuple[int, int]]:
    """Each directory of the source with that of the target, which gets its mode and time in the end."""
    waiting, found = [""], []
    while waiting:
        path = waiting.pop()
        with beneath.open_directory(source, path) as here, beneath.open_directory(target, path) as there:
            found.append((path, os.fstat(here)))
            yield here, there
            waiting += [f"{path}/{name}".lstrip("/") for name in os.listdir(here) if _is_directory(here, name)]
    for path, status in reversed(found):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), beneath.open_directory(target, path) as there:
            os.fchmod(there, stat.S_IMODE(status.st_mode))
            os.utime(there, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _is_directory(here: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)


def merge(upper: int, root: int, owners: Owners, user: tuple[int, int] | None = None) -> list[str]:
    """Move what an overlay's upper tree has into the tree below it; ``owners`` of the latter are brought up to date.

    ``user`` has made it, whose ids aren't those on disk, or root inside. Returns the FIFOs and sockets, which no image
    has.
    """
    dropped: list[str] = []
    for path in (*OF_THE_JAIL, *_JAIL_FILES):
        if (found := beneath.look(upper, path)) is not None:
            with beneath.open_parent(upper, path) as (above, name):
                beneath.remove(above, name, found)
    waiting, directories = [""], []
    links: dict[tuple[int, int], str] = {}  # the first name of each file
    while waiting:
        path = waiting.pop()
        if len(os.fsencode(path)) > layers.MAX_PATH:
            raise BadArchive(f"{path[:100]}...: longer than Linux takes")
        with beneath.open_directory(upper, path) as here, beneath.open_directory(root, path) as there:
            for name in os.listdir(here):
                inside, found = f"{path}/{name}".lstrip("/"), os.stat(name, dir_fd=here, follow_symlinks=False)
                below = beneath.look(there, name)
                if stat.S_ISDIR(found.st_mode):
                    is_new = _merge_directory(here, there, name, below)
                    _note(owners, inside, here, name, found, is_new, user)
                    directories.append((inside, found))
                    waiting.append(inside)
                    continue
                beneath.remove(there, name, below)
                if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                    former = links.setdefault((found.st_dev, found.st_ino), inside)
                    if former == inside:
                        _note(owners, inside, here, name, found, below is None, user)
                        _take(here, name, found.st_mode)
                    else:
                        owners.link(inside, former)
                    os.rename(name, name, src_dir_fd=here, dst_dir_fd=there)
                elif not layers.is_whiteout(found):
                    dropped.append(inside)
    needed = 0o700 if os.geteuid() != 0 else 0  # without root this process couldn't read it again
    for path, status in reversed(directories):
        with beneath.open_directory(root, path) as there:
            os.fchmod(there, status.st_mode & 0o1777 | needed)
            os.utime(there, ns=(status.st_mtime_ns, status.st_mtime_ns))
    owners.prune(root)
    return dropped


def _note(
    owners: Owners, path: str, here: int, name: str, found: os.stat_result, is_new: bool, user: tuple[int, int] | None
) -> None:
    """Say whose an entry of the upper tree is."""
    if user is not None and is_new:
        owners.note(path, *user)
    elif user is not None:
        if not stat.S_ISDIR(found.st_mode):
            owners.change(path)
    elif os.geteuid() != 0:
        owners.note(path, 0, 0)
    else:
        capability = b""
        if stat.S_ISREG(found.st_mode):
            with contextlib.suppress(OSError):
                capability = os.getxattr(f"/proc/self/fd/{here}/{name}", CAPABILITY, follow_symlinks=False)
        bits = 0 if stat.S_ISLNK(found.st_mode) else found.st_mode
        owners.note(path, found.st_uid - STORE_IDS[0], found.st_gid - STORE_IDS[0], bits, capability)


def _merge_directory(here: int, there: int, name: str, below: os.stat_result | None) -> bool:
    """Whether the directory is a new one."""
    os.chmod(name, 0o700, dir_fd=here)
    with beneath.open_directory(here, name) as inner:
        hides = layers.is_opaque(inner)
    if below is not None and (hides or not stat.S_ISDIR(below.st_mode)):
        beneath.remove(there, name, below)
        below = None
    if below is None:
        os.mkdir(name, 0o700, dir_fd=there)
    return below is None


def _take(here: int, name: str, mode: int) -> None:
    """Make a file or link this process's own, without what gives rights."""
    if not stat.S_ISLNK(mode):
        os.chmod(name, mode & 0o777, dir_fd=here)  # first: with set-id bits it must never be ours
    os.chown(name, os.geteuid(), os.getegid(), dir_fd=here, follow_symlinks=False)
    if stat.S_ISLNK(mode):
        return
    path = f"/proc/self/fd/{here}/{name}"
    for attribute in os.listxattr(path, follow_symlinks=False):
        if attribute.startswith(("user.overlay.", CAPABILITY, "system.posix_acl_")):  # whose ids an agent may lack
            os.removexattr(path, attribute, follow_symlinks=False)


def resolve(top: int, path: str) -> str:
    """The path without links, below the directory, that a path leads to as in its root. Raises ``OSError``."""
    fd = openat2.open_at(top, path.lstrip("/") or ".", os.O_PATH, openat2.IN_ROOT)
    try:
        real, base = os.readlink(f"/proc/self/fd/{fd}"), os.readlink(f"/proc/self/fd/{top}")
    finally:
        os.close(fd)
    return os.path.relpath(real, base) if real != base else ""


def make_directories(top: int, path: str, made: list[str] | None = None) -> str:
    """Make a directory with those above it; links lead within the tree. Returns its path without links.

    ``made`` gets the paths of those that weren't there.
    """
    real = ""
    for part in filter(None, path.split("/")):
        wanted = f"{real}/{part}".lstrip("/")
        try:
            real = resolve(top, wanted)
        except FileNotFoundError:
            with beneath.open_parent(top, wanted) as (above, name):
                os.mkdir(name, 0o755, dir_fd=above)
                os.chmod(name, 0o755, dir_fd=above)  # whatever the umask
            real = wanted
            if made is not None:
                made.append(real)
    with beneath.open_directory(top, real):
        return real
