"""Keeps what commands of EXEC change in the files of a recorded life, around each of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import define
from msgspec.structs import replace

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.recordings.changes import Listing, NotKept, Place, save_changes
from agentos.recordings.format import FILES
from agentos.sandbox.files.root_files import WORKSPACE
from agentos.services.snapshots import beneath
from agentos.threads import run_in_thread
from agentos_sdk.calls.host import Exec
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op

from .recorder import Recorder


@define(eq=False)
class CommandFiles:
    """Makes the entry of EXEC in the table of callers that are recorded."""

    recorder: Recorder

    def watch(self, syscall: Syscall) -> Syscall:
        """The call, which for EXEC keeps what the command changes before it is answered."""
        if syscall.op != Op.EXEC:
            return syscall

        @asynccontextmanager
        async def prepare(caller: Caller, request: Exec) -> AsyncIterator[Prepared]:
            async with syscall.preview(caller, request) as found:

                async def act(call: Call) -> object:
                    async with self.around(call, is_own(caller, request)):
                        return await found.act(call)

                yield replace(found, act=act)

        return replace(syscall, prepare=prepare)

    @asynccontextmanager
    async def around(self, call: Call, is_own: bool = True) -> AsyncIterator[None]:
        """Keep what is changed in the caller's files until the block ends; nothing of a command that isn't its own."""
        place = self._find_place(call.caller) if is_own else None
        before = await self._list(call.caller, place) if place is not None else None
        try:
            yield
        finally:
            if place is not None and before is not None:
                with trio.CancelScope(shield=True):
                    await self._keep(call, call.caller, place, before)

    def _find_place(self, caller: Caller) -> Place | None:
        """Where the caller's files are; None if what is changed in them isn't kept."""
        agent = self.recorder.registry.get(caller.id)
        if agent is None or not self.recorder.keeps_files(caller):
            return None
        jail, view = agent.life.jail, agent.life.view
        workspace = jail.parts.workspace if jail is not None else None
        if workspace is None or view is None:
            return None
        if workspace.kind == "overlay" and workspace.watched is not None:
            return Place(partial(beneath.open_top, workspace.watched), layered=True)
        return Place(view.roots[WORKSPACE], layered=False)

    async def _list(self, caller: Caller, place: Place) -> Listing | None:
        try:
            return await run_in_thread(place.list)
        except (NotKept, OSError, CallError) as error:
            self.recorder.lose_files(caller, str(error))
            return None

    async def _keep(self, call: Call, caller: Caller, place: Place, before: Listing) -> None:
        number, targets = self.recorder.find_call(call, caller)
        if number is None:
            self.recorder.lose_files(caller, "a command has run in the background")
            return
        for target in targets:
            if not target.begun:
                await self.recorder.queue.flush()
            directory, room = target.directory / FILES / str(number), target.max_bytes - target.size - target.kept
            try:
                paths, size = await run_in_thread(save_changes, place, before, directory, room)
            except (NotKept, OSError, CallError) as error:
                self.recorder.lose_files(caller, str(error))
            else:
                self.recorder.note_files(caller, call, target, paths, size)


def is_own(caller: Caller, request: Exec) -> bool:
    """Whether a command runs beside its caller."""
    return request.name in (None, caller.name) and request.id in (None, caller.id)
