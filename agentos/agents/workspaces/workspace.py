"""Agent workspaces: a tmpfs, a named image or directory under the state directory, or a host directory."""

import errno
import logging
import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

import trio
from msgspec import Struct

import agentos
import agentos_sdk
import supervisors
from agentos.presets import DIRECTORY as PRESETS
from agentos.private_files import check_file, display_path, hold_directory
from agentos.sandbox.errors import EXHAUSTED
from agentos.sandbox.files import images
from agentos.sandbox.files.images import ImageInUse, ImageSize, ImageUnavailable
from agentos.sandbox.host_ids import STORE_IDS
from agentos.sandbox.policy import MIB, Directory, Image, Limits, Overlay
from agentos.services.snapshots.changes import TooManyChanges
from agentos.services.snapshots.leftovers import AGE, remove_leftovers
from agentos.services.snapshots.overlays import Overlays
from agentos.services.snapshots.records import BadLayer, CannotApply
from agentos.threads import run_in_thread
from agentos_sdk.errors import QuotaExceeded, Unavailable
from agentos_sdk.values import HostIds

from . import obeyed_names
from .config_file import ConfigFile, Unprotected
from .git_names import NotHeld, find_git_names, find_led
from .hard_links import Linked, find_hard_links
from .nested_repositories import Repositories, find_repositories
from .protected_files import Locked, Stubs, Unprotectable

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT = 10  # seconds for Linux to release the image of an ended agent
_LOCK_TIMEOUT = 2.0  # seconds for another kernel to remove its stubs from a directory, which takes milliseconds
_LOCK_INTERVAL = 0.05  # seconds between two attempts to lock it
_WATCHED_MECHANISM = "watched, may overshoot"
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")
_WHOLE = ("/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var", "/var/lib", "/var/tmp")


class BadWorkspace(Exception):
    """This can't be an agent's workspace; the text says why."""


class Workspace(Struct, frozen=True):
    """A workspace that is ready for one life of an agent; ``mount`` is for its policy."""

    kind: Literal["tmp", "image", "directory", "host", "overlay"]
    mount: Directory | Image | Overlay | None
    mechanism: str  # that enforces its size limit
    reason: str = ""  # why it isn't an image
    new: bool = False  # no agent has used it before
    repositories: Repositories = Repositories()  # in a host directory, at the beginning
    obeyed: frozenset[str] = frozenset()  # names that programs obey there, at the beginning
    notices: tuple[str, ...] = ()  # for the user, of what an agent can do by it

    @property
    def watched(self) -> str | None:
        """The directory that the disk watcher must measure; of an overlay the changes alone."""
        if isinstance(self.mount, Overlay):
            return f"{self.mount.upper}/tree"
        return self.mount.path if isinstance(self.mount, Directory) else None


class Workspaces:
    """All workspaces of one kernel. ``state`` is its directory; agents can't have ``off_limits`` either.

    ``config_file`` is the kernel's configuration, which they may have beside them, but not change.
    """

    def __init__(
        self, state: Path, is_root: bool, off_limits: Sequence[Path] = (), config_file: str | None = None
    ) -> None:
        self.config_file, self.overlays = ConfigFile(config_file), Overlays(state, find_led)
        self._kept, self._is_root = state / "workspaces", is_root
        self._off_limits = [os.path.realpath(path) for path in (state, *off_limits)]
        self._stubs = Stubs(state / "stubs.json")
        self._in_use: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()  # by path
        self._config_lock = trio.Lock()

    async def sweep(self) -> None:
        """Remove the stubs that a killed kernel left in host directories, and finish what it was applying to them.

        Called at the start.
        """
        await trio.to_thread.run_sync(self._stubs.sweep)
        for sentence in [*await self.overlays.finish_all(), *await remove_leftovers(self.overlays)]:
            log.warning("%s", sentence)

    def list_kept(self) -> AbstractSet[str]:
        """The names with stored files."""
        return list_kept(self._kept)

    async def prepare(
        self, name: str, wanted: str, limits: Limits, outer: HostIds | None, mode: str = "direct"
    ) -> Workspace:
        """Prepare a workspace: ``tmp``, ``keep`` or an absolute path without symlinks, with ``mode`` overlay or direct.

        Called for each life; :meth:`release` undoes it. ``outer`` is the agent's uid and gid on the host. Raises
        :class:`BadWorkspace`.
        """
        if wanted == "tmp":
            return Workspace("tmp", None, f"tmpfs of {_sized(limits.disk)}, {limits.inodes} inodes")
        if wanted == "keep":
            return await self._keep(name, limits, outer)
        if mode == "overlay":
            return await self._overlay(name, wanted, outer)
        try:
            return await self._hosts(wanted)
        except (OSError, Unprotectable, Unprotected, Linked) as error:
            raise BadWorkspace(f"workspace {wanted}: {error}") from None

    async def release(self, workspace: Workspace) -> list[str]:
        """Release a workspace after the agent's end; returns messages for the user. Not interrupted by cancellation."""
        if workspace.kind == "overlay":
            with trio.CancelScope(shield=True):
                for sentence in await remove_leftovers(self.overlays, AGE):
                    log.warning("%s", sentence)
        if workspace.kind != "host" or workspace.watched is None:
            return []
        with trio.CancelScope(shield=True):
            planted = await self.take_planted(workspace)
            async with self._use(workspace.watched):
                await trio.to_thread.run_sync(self._stubs.release, workspace.watched)
            async with self._config_lock:
                await trio.to_thread.run_sync(self.config_file.release, workspace.watched)
            try:
                after = await trio.to_thread.run_sync(find_repositories, workspace.watched)
            except EXHAUSTED:
                after = Repositories(whole=False)
            present = await trio.to_thread.run_sync(obeyed_names.find_present, workspace.watched)
        new = obeyed_names.sentences(present - workspace.obeyed)
        return [*planted, *after.sentences(workspace.repositories), *new]

    async def take_planted(self, workspace: Workspace) -> Sequence[str]:
        """Take out files that host programs run by their name and that have appeared; returns messages for the user."""
        if workspace.kind != "host" or workspace.watched is None:
            return ()
        async with self._use(workspace.watched):
            return await trio.to_thread.run_sync(self._stubs.take_planted, workspace.watched)

    async def forget(self, workspace: Workspace) -> None:
        """Remove a new image in which no program ever started, so that it can be made again with other limits."""
        if workspace.new and isinstance(workspace.mount, Image):
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(Path(workspace.mount.path).unlink, missing_ok=True))

    async def _keep(self, name: str, limits: Limits, outer: HostIds | None) -> Workspace:
        deadline = trio.current_time() + _RELEASE_TIMEOUT
        while True:
            try:
                return await trio.to_thread.run_sync(self._kept_by_name, name, limits, outer)
            except ImageInUse as error:  # Linux unmounts a file system shortly after its last process ends
                if trio.current_time() > deadline:
                    raise BadWorkspace(f"workspace keep: {error}") from None
                await trio.sleep(0.003)
            except OSError as error:
                raise BadWorkspace(f"workspace keep: can't be used: {error}") from None

    def _kept_by_name(self, name: str, limits: Limits, outer: HostIds | None) -> Workspace:
        with hold_directory(self._kept) as held:
            kept = Path(display_path(held))  # another process mounts it, without this file descriptor
        directory, reason = kept / name, "without root no image can be mounted"
        if self._is_root and outer is not None:
            if directory.is_dir():
                reason = f"it was begun as a directory: move {directory} away for an image"
            else:
                try:
                    return _image(kept / f"{name}.img", limits, outer)
                except ImageUnavailable as error:
                    reason = str(error)
        _own_directory(directory, outer)
        return Workspace("directory", Directory(str(directory), kept=True), _WATCHED_MECHANISM, reason)

    async def _overlay(self, name: str, path: str, outer: HostIds | None) -> Workspace:
        if path != self.overlays.empty:
            await run_in_thread(self._check, path)
        try:
            layers = await self.overlays.open(name, path, outer)
        except (OSError, BadLayer, CannotApply, TooManyChanges, QuotaExceeded, Unavailable) as error:
            raise BadWorkspace(f"workspace {path}: {error}") from None
        mount = Overlay(path, layers.upper, layers.sealed)
        return Workspace("overlay", mount, _WATCHED_MECHANISM, "only its changes count")

    def _use(self, path: str) -> trio.Lock:
        """The lock of one directory: what a program can delay in it delays nothing elsewhere."""
        return self._in_use.setdefault(path, trio.Lock())

    async def _hosts(self, path: str) -> Workspace:
        deadline = trio.current_time() + _LOCK_TIMEOUT
        while True:
            try:
                async with self._use(path):
                    config, found = await trio.to_thread.run_sync(self._protect, path)
                break
            except Locked:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(_LOCK_INTERVAL)  # without ours: files are taken out of the directory meanwhile
        if config:
            with trio.CancelScope(shield=True):  # the caller must get what is protected, to release it
                async with self._config_lock:
                    await trio.to_thread.run_sync(self.config_file.hold, path)
        return found

    def _protect(self, path: str) -> tuple[Sequence[str], Workspace]:
        """The names that lead to the configuration file, and the workspace with all protected names. Blocks."""
        self._check(path)
        config = self.config_file.find_protected(path)
        before, obeyed, links = find_repositories(path), obeyed_names.find_present(path), find_hard_links(path)
        try:
            git = find_git_names(path)
        except NotHeld as error:
            raise BadWorkspace(f"workspace {path}: {error}") from None
        if config:  # presets beside it say how programs are started
            git = git._replace(stubs={**git.stubs, PRESETS: None})
        protected = (*self._stubs.acquire(path, config, git), *_ours_in(path))
        try:
            links.check(path, {*protected})
        except Linked:
            self._stubs.release(path)
            raise
        reason = "a directory of the host's has no size of its own"
        mount = Directory(path, tuple(dict.fromkeys(protected)))
        notices = tuple(links.sentences())
        return config, Workspace("host", mount, _WATCHED_MECHANISM, reason, False, before, obeyed, notices)

    def _check(self, path: str) -> None:
        """Refuse directories through which an agent could take over the host or the kernel."""
        if not os.path.isdir(path):
            raise BadWorkspace(f"workspace {path}: not a directory")
        if (why := describe_unfit(path)) is not None:
            raise BadWorkspace(f"workspace {path}: {why}")
        for other in self._off_limits:
            if _within(path, other) or _within(other, path):
                raise BadWorkspace(f"workspace {path}: {other} is the kernel's own")


def list_kept(directory: Path) -> AbstractSet[str]:
    """The names with files in a directory of kept workspaces."""
    found = os.listdir(directory) if directory.is_dir() else []
    return {name.removesuffix(".img") for name in found} | set(found)


def describe_unfit(path: str) -> str | None:
    """Why no agent may have this directory, in any kernel. Blocks: it reads the user database."""
    if (real := os.path.realpath(path)) != path:
        return f"a symbolic link leads to {real}: name that, if it is what you mean"
    if any(_within(path, system) for system in _SYSTEM) or path in _WHOLE:
        return "a directory of the system's"
    if path in {one.pw_dir for one in pwd.getpwall()}:
        return "a user's whole home; name a directory in it"
    code = next((code for code in _our_code() if _within(path, code)), None)
    return f"in {code}, which the kernel runs" if code is not None else None


def _image(path: Path, limits: Limits, outer: HostIds) -> Workspace:
    check_file(path)
    new = not path.exists()
    size = images.ensure_image(path, ImageSize(limits.disk, limits.inodes), outer)
    mechanism = f"ext4 in an image of {_sized(size.bytes)}, {size.inodes} inodes"
    other = f"{_sized(limits.disk)} was asked for, but it was made with another size"
    return Workspace("image", Image(str(path)), mechanism, "" if size.bytes == limits.disk else other, new)


def _own_directory(path: Path, outer: HostIds | None) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(fd).st_uid
        first, count = STORE_IDS
        is_of_root_inside = first <= owner < first + count  # which may have given it to another one of its users
        if outer is not None and outer.uid == first and not is_of_root_inside and os.listdir(fd):
            why = f"it was begun without root inside, by uid {owner}: move {path} away"
            raise OSError(errno.EPERM, why)
        if outer is not None and not is_of_root_inside:
            os.fchown(fd, outer.uid, outer.gid)
    finally:
        os.close(fd)


def _our_code() -> Iterator[str]:
    """The directories the kernel imports from: write access to them would give control of the kernel."""
    packages = (os.path.dirname(str(package.__file__)) for package in (agentos, agentos_sdk, supervisors))
    yield from dict.fromkeys(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *packages))


def _ours_in(path: str) -> tuple[str, ...]:
    return tuple(os.path.relpath(code, path) for code in _our_code() if _within(code, path))


def _within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _sized(size: int) -> str:
    return f"{size // MIB}M" if size % MIB == 0 else f"{size} bytes"
