"""The images of a state directory.

    images/NAME.json       an image's record, which names its tree
    images/trees/ID/root   its files; ID is random, and an image that is imported again gets another
    images/trees/ID/owned  those of other owners than root once more, for root inside; owners.json lists them
    images/trees/ID/upper  while it is built: what a program in it writes
    images/cache/KEY.json  a step of a build that was done, whose tree the next build may begin with
    images/store.lock      held exclusively while records or trees begin or cease to be

A tree that no record names is garbage, unless it is locked: by an import (exclusively), or by a jail that has it as
its root (shared). So it can be collected at any time, after whatever crash. Everything blocks.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from agentos.private_files import UnsafeFile, display_path, hold_directory, open_file, replace_file
from agentos.sandbox.files import openat2
from agentos.sandbox.watch.tree_usage import measure_tree
from agentos.services.snapshots import beneath
from agentos.structs import learn, read_json

from .config import ImageConfig
from .errors import BadArchive, BadStore, NoImage
from .owners import TREE

PLACE, STEPS = "images", "cache"
MAX_STEPS = 50  # of builds; their trees share the files that they have in common
MAX_STEP_AGE = 14 * 86_400 * 10**9  # nanoseconds since it was last used
LITTLE = 16 << 20  # bytes of a disk that are as none
MAX_ACCOUNTS = 32 << 10  # bytes of passwd and of group
MAX_TOP = 256  # directories and files at an image's top: each is a rule of Landlock's
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
NAME_RULE = "a name of 1 to 64 letters, digits, '.', '_' or '-', begun by a letter or digit"
OWN = ("agent", "dev", "proc", "sdk", "sys", "tmp", "workspace")  # a jail has its own ones at its top


class Image(Struct, frozen=True):
    """An image. ``digest`` is that of its manifest (or configuration, or of a plain tar), ``bytes`` those on disk.

    ``directories`` and ``files`` are names at its top, without those that a jail has of its own, and no links.
    ``left_out`` are sentences about what isn't taken of it. ``made`` is in seconds since the epoch.
    """

    name: str
    digest: str
    format: str
    layers: int
    bytes: int
    entries: int
    made: float
    tree: str
    directories: tuple[str, ...]
    files: tuple[str, ...]
    config: ImageConfig
    left_out: tuple[str, ...] = ()
    accounts: tuple[str, str] = ("", "")  # its passwd and group
    building: bool = False  # one jail at a time may change it, as long as the build holds its tree


class Step(Struct, frozen=True):
    """A step of a build, kept with the tree after it."""

    tree: str


learn(Image, Step)


class Opened(Struct, frozen=True):
    """An image in use: its files stay until :meth:`close`. ``path`` leads to them, without links.

    ``owned`` leads to the second tree, if there is one; ``upper`` is the directory with the changes of one that is
    built.
    """

    image: Image
    path: str
    fd: int
    owned: str = ""
    upper: str = ""

    def close(self) -> None:
        os.close(self.fd)

    def has_program(self, name: str, path: str) -> bool:
        """Whether it has a program of this name in one of the directories of ``path``, or at this absolute path."""
        root = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            places = (name,) if "/" in name else (f"{place}/{name}" for place in path.split(":"))
            return any(_is_program(root, place) for place in places)
        finally:
            os.close(root)


class Images:
    """The images in a state directory, which is held or ours alone to write."""

    def __init__(self, state: Path) -> None:
        self._place = state / PLACE

    def list(self) -> Sequence[Image]:
        """All, by name. Raises :class:`BadStore`."""
        with self._hold(make=False) as place:
            names = sorted(os.listdir(place)) if place is not None else []
            found = [_read(place, name.removesuffix(".json")) for name in names if place and name.endswith(".json")]
        return [image for image in found if image is not None and not image.building]

    def find(self, name: str) -> Image:
        """Raises :class:`NoImage`, :class:`BadStore`."""
        with self._hold(make=False) as place:
            image = _read(place, name) if place is not None and NAME.fullmatch(name) else None
        if image is None:
            raise NoImage(f"there is no image {name!r}: `agentos image import FILE {name}` makes it")
        return image

    def find_digest(self, name: str, digest: str) -> Image:
        """The image with this digest, of this name if there are several. Raises :class:`NoImage`, :class:`BadStore`."""
        images = self.list()
        found = [image for image in images if image.digest == digest]
        if not found:
            other = next((f", and {name} here has another ({each.digest})" for each in images if each.name == name), "")
            raise NoImage(f"there is no image with the digest of {name} ({digest}){other}: import or pull that one")
        return next((image for image in found if image.name == name), found[0])

    def open(self, name: str) -> Opened:
        """An image for a jail. Raises :class:`NoImage`, :class:`BadStore`."""
        for _ in range(100):  # until no import replaces it meanwhile
            image = self.find(name)
            with self._hold(make=False) as place:
                assert place is not None, "it has a record"
                tree = place / "trees" / image.tree
                owned = display_path(tree / TREE) if (tree / TREE).is_dir() else ""
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    if image.building:
                        fd, upper = _lock(tree / "upper", fcntl.LOCK_EX), display_path(tree / "upper")
                        return Opened(image, display_path(tree / "root"), fd, owned, upper)
                    fd = _lock(tree, fcntl.LOCK_SH)
                    if (tree / "root").is_dir():
                        return Opened(image, display_path(tree / "root"), fd, owned)
                    os.close(fd)
            if self.find(name).tree == image.tree:
                break
        raise BadStore(f"the files of image {name!r} aren't there: import it again")

    def remove(self, name: str) -> None:
        """Remove an image; files that a jail has stay until it ends. Raises :class:`NoImage`."""
        self.find(name)
        with self._locked() as place:
            (place / f"{name}.json").unlink(missing_ok=True)
            _collect(place)

    def collect(self) -> None:
        """Remove what no image and no jail has."""
        if self._place.is_dir():
            with self._locked() as place:
                _collect(place)

    @contextlib.contextmanager
    def make(self) -> Iterator["NewTree"]:
        """A new tree, which is removed again unless it was named."""
        with self._locked() as place:
            _collect(place)
            new = secrets.token_hex(8)
            (place / "trees").mkdir(mode=0o700, exist_ok=True)
            (place / "trees" / new).mkdir(mode=0o700)
            lock = _lock(place / "trees" / new, fcntl.LOCK_EX)
            (place / "trees" / new / "root").mkdir(mode=0o755)
            os.chmod(place / "trees" / new / "root", 0o755)  # whatever the umask
        try:
            yield NewTree(self, new, self._place / "trees" / new / "root")
        finally:
            with self._locked() as place:
                os.close(lock)
                _collect(place)

    def name(self, image: Image) -> None:
        """Make an image, or replace it; its tree is complete and on disk."""
        with self._locked() as place:
            replace_file(place / f"{image.name}.json", msgspec.json.encode(image))

    def forget(self, name: str) -> None:
        """Remove the record of an image that was being built."""
        with self._locked() as place:
            (place / f"{name}.json").unlink(missing_ok=True)

    def keep_step(self, key: str, new: "NewTree") -> None:
        """Keep the tree of a build's step; of all steps only those that were used lately are kept."""
        with self._locked() as place:
            (place / STEPS).mkdir(mode=0o700, exist_ok=True)
            replace_file(place / STEPS / f"{key}.json", msgspec.json.encode(Step(new.id)))
            times = {name: os.stat(place / STEPS / name).st_mtime_ns for name in os.listdir(place / STEPS)}
            latest, oldest = sorted(times, key=times.__getitem__)[-MAX_STEPS:], time.time_ns() - MAX_STEP_AGE
            for name in times:
                if name not in latest or times[name] < oldest:
                    (place / STEPS / name).unlink()

    def make_room(self) -> None:
        """Remove all steps that are kept, if the disk is full: nothing else would remove them."""
        if not (self._place / STEPS).is_dir() or shutil.disk_usage(self._place).free >= LITTLE:
            return
        with self._locked() as place:
            for name in os.listdir(place / STEPS):
                (place / STEPS / name).unlink()
            _collect(place)

    @contextlib.contextmanager
    def open_step(self, key: str) -> Iterator[Path | None]:
        """The directory with the tree of a step that was kept; it stays meanwhile."""
        with contextlib.ExitStack() as stack:
            with self._locked() as place:
                step, tree = _read_step(place, f"{key}.json"), None
                # Its build may hold it for a moment yet: then it is as one that isn't there.
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    if step is not None:
                        stack.callback(os.close, _lock(place / "trees" / step.tree, fcntl.LOCK_SH))
                        os.utime(place / STEPS / f"{key}.json")
                        tree = Path(display_path(place / "trees" / step.tree))
            yield tree

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Path]:
        with self._hold(make=True) as place:
            assert place is not None, "it was made"
            with open(open_file(place / "store.lock", os.O_RDWR | os.O_CREAT), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield place

    @contextlib.contextmanager
    def _hold(self, *, make: bool) -> Iterator[Path | None]:
        if not make and not self._place.is_dir():
            yield None
            return
        try:
            with hold_directory(self._place) as held:
                yield held
        except UnsafeFile as error:
            raise BadStore(f"{error.filename}: {error.strerror}") from None


class NewTree(Struct, frozen=True):
    """A tree that is being made at ``root``."""

    store: Images
    id: str
    root: Path


def describe_tree(top: int) -> tuple[int, int, tuple[str, ...], tuple[str, ...]]:
    """The bytes and entries of an image's tree, and the names of directories and files at its top."""
    usage = measure_tree(os.dup(top), sys.maxsize, sys.maxsize)
    modes = {name: os.stat(name, dir_fd=top, follow_symlinks=False).st_mode for name in sorted(os.listdir(top))}
    shown = {name: mode for name, mode in modes.items() if name not in OWN}
    for name in shown:
        if not _is_utf8(name):
            raise BadArchive(f"{name!r} at its top isn't UTF-8: give it another name")
    if len(shown) > MAX_TOP:
        raise BadArchive(f"it has {len(shown)} directories and files at its top, and more than {MAX_TOP} are too many")
    directories = tuple([name for name, mode in shown.items() if stat.S_ISDIR(mode)])
    return usage.size, usage.inodes, directories, tuple([name for name, mode in shown.items() if stat.S_ISREG(mode)])


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_accounts(top: int) -> tuple[str, str]:
    """The passwd and group of a tree; empty where there is none, or a large one."""
    texts = []
    for name in ("etc/passwd", "etc/group"):
        data = b""
        with contextlib.suppress(OSError), beneath.open_file(top, name) as file:
            data = os.read(file, MAX_ACCOUNTS + 1)
        texts.append(data.decode(errors="replace") if len(data) <= MAX_ACCOUNTS else "")
    return texts[0], texts[1]


def _is_program(root: int, path: str) -> bool:
    """Links in the image lead within it, as they do in its jail."""
    try:
        fd = openat2.open_at(root, path, os.O_PATH, openat2.IN_ROOT)
    except OSError:
        return False
    try:
        mode = os.fstat(fd).st_mode
        return stat.S_ISREG(mode) and bool(mode & stat.S_IXUSR)
    finally:
        os.close(fd)


def _read(place: Path, name: str) -> Image | None:
    try:
        return read_json(place / f"{name}.json", Image)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnsafeFile) as error:
        path = display_path(place / f"{name}.json")
        raise BadStore(f"{path} is damaged ({error}): remove it, and import the image again") from None


def _read_step(place: Path, name: str) -> Step | None:
    """A damaged one is as one that isn't there: the step is done again."""
    try:
        return read_json(place / STEPS / name, Step)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _lock(path: Path, how: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_free(path: Path) -> bool:
    """Whether neither a build nor a jail has locked a directory of the store; one that isn't there is."""
    try:
        os.close(_lock(path, fcntl.LOCK_EX))
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def _take_tree(place: Path, name: str) -> str:
    """The tree of an image's record; one whose build has ended is removed."""
    image = _read(place, name)
    if image is None or not image.building:
        return image.tree if image is not None else ""
    tree = place / "trees" / image.tree
    if not (is_free(tree) and is_free(tree / "upper")):  # a jail outlives a build that was killed for a moment
        return image.tree
    (place / f"{name}.json").unlink()
    return ""


def _collect(place: Path) -> None:
    """Remove trees that no record names and no process has locked; the store is locked."""
    if not (place / "trees").is_dir():
        return
    try:
        named = {_take_tree(place, name.removesuffix(".json")) for name in os.listdir(place) if name.endswith(".json")}
        kept = os.listdir(place / STEPS) if (place / STEPS).is_dir() else []
        named |= {step.tree for name in kept if (step := _read_step(place, name)) is not None}
    except BadStore:  # it may name any of them
        return
    with beneath.open_top(display_path(place / "trees")) as top:
        for tree in set(os.listdir(top)) - named:
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                lock = _lock(place / "trees" / tree, fcntl.LOCK_EX)
                try:
                    beneath.remove_tree(top, tree)
                finally:
                    os.close(lock)
