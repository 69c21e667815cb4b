"""Imports of archives: staged, moved into place, and undone if they don't come to an end.

::

    imports/ID/workspace/     what is being unpacked
    imports/ID/record.json    for which agent it is moved into place, written before that

An import has ended when its directory is gone. What a killed kernel has left is undone by the next one, before it
starts agents: the workspace and the keys that came with it are removed. Nothing else had these: a name with files or
keys of its own is refused.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio
from attrs import frozen
from msgspec import Struct

from agentos.private_files import display_path, hold_directory, replace_file
from agentos.services.snapshots import beneath
from agentos.services.state.copies import KeptKey
from agentos.services.state.state import State
from agentos.structs import learn, read_json
from agentos.threads import run_in_thread
from agentos_sdk.errors import Unavailable

log = logging.getLogger(__name__)


class Record(Struct, frozen=True):
    """Whose import it is: the name, which is also that of its workspace and of its private keys."""

    name: str


learn(Record)


@frozen(eq=False)
class Imports:
    """All imports of one kernel. ``directory`` is its state directory, held."""

    directory: Path
    state: State

    @asynccontextmanager
    async def stage(self) -> AsyncIterator["Staged"]:
        """A place to unpack into, which is removed at the end."""
        number = secrets.token_hex(8)
        await run_in_thread(self._make, number)
        try:
            yield Staged(self, number)
        finally:
            with trio.CancelScope(shield=True):
                await run_in_thread(self._remove, number)

    async def sweep(self) -> None:
        """Undo what a killed kernel has left."""
        try:
            for number in await run_in_thread(self._list):
                record = await run_in_thread(self._read, number)
                if record is not None:
                    await self.undo(record.name)
                    log.warning("the import of %s was cut short with the last kernel, and is undone", record.name)
                await run_in_thread(self._remove, number)
        except (OSError, Unavailable, msgspec.MsgspecError) as error:
            log.warning("an import that was cut short isn't undone: %s", error)

    async def undo(self, name: str) -> None:
        """Remove the workspace and the keys of an import."""
        await run_in_thread(self._drop_workspace, name)
        await self.state.replace(name, [])

    def _make(self, number: str) -> None:
        with hold_directory(self.directory / "imports") as held, hold_directory(held / number) as place:
            (place / "workspace").mkdir(mode=0o700)

    def _remove(self, number: str) -> None:
        with hold_directory(self.directory / "imports") as held, beneath.open_top(display_path(held)) as top:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{number}/record.json", dir_fd=top)  # first: what is moved already stays
            beneath.remove_tree(top, number)

    def _list(self) -> Sequence[str]:
        place = self.directory / "imports"
        return os.listdir(place) if place.is_dir() else []

    def _read(self, number: str) -> Record | None:
        """Whose import it was, if anything of it is in place."""
        with hold_directory(self.directory / "imports" / number) as place, contextlib.suppress(FileNotFoundError):
            if not (place / "workspace").exists():
                return read_json(place / "record.json", Record)
        return None

    def _drop_workspace(self, name: str) -> None:
        with hold_directory(self.directory / "workspaces") as held, beneath.open_top(display_path(held)) as top:
            beneath.remove_tree(top, name)


@frozen
class Staged:
    """One import, which is staged."""

    _imports: Imports
    _number: str

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """The directory to unpack the workspace into. Blocks."""
        with self._hold() as place, beneath.open_top(display_path(place / "workspace")) as top:
            yield top

    @asynccontextmanager
    async def keep(self, name: str, keys: Sequence[KeptKey]) -> AsyncIterator[None]:
        """Move the workspace into place and store the keys; both are removed again if the block fails.

        Raises ``FileExistsError`` if there is a workspace of this name, ``OSError``, ``QuotaExceeded`` or
        ``Unavailable``.
        """
        await run_in_thread(self._move, name)
        try:
            await self._imports.state.replace(name, keys)
            yield
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._imports.undo(name)
            raise

    def _move(self, name: str) -> None:
        with self._hold() as place, hold_directory(self._imports.directory / "workspaces") as kept:
            replace_file(place / "record.json", msgspec.json.encode(Record(name)))
            with beneath.open_top(display_path(place)) as source, beneath.open_top(display_path(kept)) as target:
                beneath.move(source, "workspace", target, name)

    @contextlib.contextmanager
    def _hold(self) -> Iterator[Path]:
        with hold_directory(self._imports.directory / "imports" / self._number) as place:
            yield place
