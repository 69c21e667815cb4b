"""The start trees of recorded lives: an agent's files, keys and unread mail as its life begins, kept by snapshots."""

# A snapshot that is taken before a program starts copies no file: the upper layer is sealed as it is, and the life gets
# a new one above it. So it costs the same whatever the directory's size. A life names its snapshot, and one that no
# recording names any more is removed, also if its recording was removed while no kernel ran.
# What must stay true: a life begins whether its start tree can be kept or not, and says so. docs/decisions/0113.

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from agentos.agents.jail.jail import JailOwner, lineage
from agentos.agents.registry import Agent
from agentos.agents.workspaces.workspace import Workspace
from agentos.recordings.format import EMPTY
from agentos.recordings.kept import scan
from agentos.recordings.own import Marks
from agentos.services.snapshots.overlays import NoOverlay
from agentos.services.snapshots.records import BadLayer
from agentos.services.snapshots.snapshots import Snapshots, Taken
from agentos.threads import run_in_thread
from agentos_sdk.errors import CallError

from .recorder import Recorder

log = logging.getLogger(__name__)

IN_PLACE = 'its workspace is a directory that it changes in place: snapshots need mode = "overlay"'
NO_SNAPSHOTS = {
    "image": "its workspace is an image, of which no snapshot can be taken",
    "directory": IN_PLACE,
    "host": IN_PLACE,
}


@define(eq=False)
class StartTrees:
    """Keeps them, and releases them with the recordings that name them."""

    recorder: Recorder
    snapshots: Snapshots
    _releasing: trio.Lock = field(factory=trio.Lock)

    async def keep(self, agent: JailOwner, workspace: Workspace) -> bool:
        """Keep what an agent begins with, if its life is recorded; whether its workspace has to be prepared anew."""
        if not isinstance(agent, Agent) or not self.recorder.wants(agent.id):
            return False
        if workspace.kind == "tmp":
            self.recorder.note_start(agent, EMPTY)
            return False
        if workspace.kind != "overlay":
            self.recorder.note_start(agent, None, NO_SNAPSHOTS[workspace.kind])
            return False
        key = lineage(agent)
        try:
            taken = await self.snapshots.take(key, agent.queue_path[-1].name, "", _hold_nothing, recorded=True)
        except (NoOverlay, BadLayer, Taken, OSError, CallError) as error:
            self.recorder.note_start(agent, None, f"its files could not be kept: {error}")
        else:
            self.recorder.note_start(agent, taken.address, size=taken.bytes)
        return True

    async def release(self) -> None:
        """Remove what no recording names any more. No life waits for it, but the next one of an agent whose it is."""
        async with self._releasing:
            try:
                found = await self.snapshots.list(recorded=True)
                for name in {one.name for one in found}:
                    async with self.snapshots.overlays.lock(name):
                        pass  # one that was being taken is named now
                named = self.recorder.list_starts()
                await self.recorder.queue.flush()
                named |= await run_in_thread(list_starts, self.recorder.directory, self.recorder.marks)
                for one in found:
                    if one.address not in named:
                        await self.snapshots.remove(one)
            except (BadLayer, Taken, OSError) as error:
                log.warning("files of recordings that are gone may stay: %s", error)


@asynccontextmanager
async def _hold_nothing() -> AsyncIterator[bool]:
    yield False


def list_starts(directory: Path, marks: Marks) -> set[str]:
    """The snapshots that the own recordings in a directory name. Reads their manifests."""
    own = [each.manifest for each in scan(directory) if marks.is_own(each.manifest)]
    return {life.start for manifest in own for life in manifest.lives if life.start}
