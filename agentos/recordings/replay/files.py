"""The files of a recorded life that is lived again: its workspace begins as the recorded one did."""

import os
from collections.abc import Sequence
from functools import partial

from attrs import frozen
from msgspec.structs import replace

from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.recordings.changes import NotKept, put_changes
from agentos.recordings.format import EMPTY, Life
from agentos.recordings.matching import Difference
from agentos.recordings.reader import RecordedCall, Recording
from agentos.recordings.recorder.commands import CommandFiles
from agentos.sandbox.files.root_files import WORKSPACE
from agentos.services.snapshots.overlays import NoOverlay
from agentos.services.snapshots.records import BadLayer, Snapshot
from agentos.services.snapshots.snapshots import Snapshots, Taken
from agentos.threads import check_cancelled, run_in_thread
from agentos_sdk.errors import CallError

from .progress import ReplayFailed

FOREIGN = "the recording is from elsewhere"
MAX_NAMED = 5  # paths in one sentence
ERRORS = (NoOverlay, BadLayer, Taken, OSError, CallError)


@frozen
class StartFiles:
    """The workspace that ``snapshot`` has: an overlay of its own over the same directory.

    ``stays``: what the agent has changed stays when it has ended, until another one of its name begins.
    """

    snapshots: Snapshots
    snapshot: Snapshot
    stays: bool

    async def begin(self, name: str) -> None:
        """Have the agent ``name``, which hasn't begun, work in it. Raises ``ReplayFailed``."""
        try:
            await self.snapshots.begin_scratch(self.snapshot, name)
        except ERRORS as error:
            raise ReplayFailed(f"the files that {self.snapshot.name} began with can't be used: {error}") from None

    async def end(self, name: str) -> None:
        """It has ended. Raises ``ReplayFailed``."""
        if self.stays:
            return
        try:
            await self.snapshots.end_scratch(name)
        except ERRORS as error:
            raise ReplayFailed(f"the files of {name} can't be removed: {error}") from None


@frozen
class CommandChanges:
    """Puts what the commands of a recording have changed into the files of an agent that lives its life again."""

    recording: Recording
    registry: Registry
    commands: CommandFiles

    async def put(self, call: Call, recorded: RecordedCall) -> Sequence[Difference]:
        """Do it for one command, before it is answered; returns what could not be put."""
        view = self.registry.find(call.caller.id, None).life.view
        if view is None:  # it ends
            return []
        put = partial(put_changes, self.recording.path, recorded.begin, view.roots[WORKSPACE], view.identity)
        try:
            async with self.commands.around(call):  # a fork is recorded in its turn
                failed = await run_in_thread(put)
        except (NotKept, OSError, CallError) as error:
            return [Difference("file", f"EXEC, call {recorded.begin}", f"{recorded.files} changed files", str(error))]
        where = f"EXEC, call {recorded.begin}, "
        return [Difference("file", where + path, "changed", f"can't be: {why}") for path, why in failed]


def without_start(life: Life) -> Life:
    """A life of a recording from elsewhere, which may name any snapshot of this kernel's agents."""
    return life if life.start in (None, EMPTY) else replace(life, start=None, no_files=FOREIGN)


async def find_start(snapshots: Snapshots, life: Life, without: str) -> tuple[Snapshot | None, Sequence[str]]:
    """What a life began with, and sentences about what isn't as it was. None: it begins in another workspace.

    ``without`` says what that is.
    """
    if life.start == EMPTY:
        return None, []
    if life.start is None:
        return None, [f"{without}: {life.no_files or 'the recording has no files'}"]
    name, _, number = life.start.partition("@")
    try:
        found = await snapshots.find(name, number)
        await snapshots.check(found, found.directory)
        changed = await run_in_thread(list_changed, found)
    except ERRORS as error:
        return None, [f"{without}: {error}"]
    notes = []
    if life.resumed is not None:
        notes = [f"its files are as the crash left them after which it got {life.answers} answers of {life.resumed}"]
    if not changed:
        return found, notes
    more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
    named = ", ".join(changed[:MAX_NAMED])
    changes = f"{found.directory} has changed since the life began, and is seen as it is now: {named}{more}"
    return found, [*notes, changes]


def list_changed(snapshot: Snapshot) -> Sequence[str]:
    """What others have changed in a snapshot's directory since then, by path; a directory for what was removed in it.

    Nothing can set the time that tells it. Raises :class:`BadLayer`, ``OSError``. Looks at each entry.
    """
    top, since = snapshot.directory, int(snapshot.at * 1e9)
    if (own := os.stat(top, follow_symlinks=False)).st_ino != snapshot.inode:
        raise BadLayer(f"{top} was replaced by another directory since the life began")
    found, waiting = ["."] if own.st_ctime_ns > since else [], [top]
    while waiting:
        check_cancelled()
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_ctime_ns > since:
                    found.append(os.path.relpath(entry.path, top))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return sorted(found)
