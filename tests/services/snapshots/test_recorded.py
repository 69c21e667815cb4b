"""Snapshots of recorded lives: taken while those of others are removed, and gone when no recording names them."""

from pathlib import Path

import trio
import trio.testing

from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec
from agentos.agents.workspaces.workspace import Workspace
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.llm.settings import Account
from agentos.recordings.format import Life
from agentos.recordings.recorder.recorder import Recorder, open_recorder
from agentos.recordings.recorder.selection import RecordingSettings
from agentos.recordings.recorder.starts import StartTrees
from agentos.recordings.replay.files import find_start
from agentos.services.events import AgentSpawned
from agentos.services.rate_limit import Rate
from agentos.services.snapshots.records import Snapshot
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

from .conftest import Overlaid, fill
from .taking import NAME, Taking, open_taking

OVERLAY = Workspace("overlay", None, "")


def begin(recorder: Recorder) -> Agent:
    """A life that is recorded."""
    caller = Caller(7, "agent", NAME, Table(()), Grants(), Notebook())
    agent = Agent(AgentSpec(NAME, record=True), caller, (), None, None, None, (Account(NAME),), Rate(1, 1))
    recorder.registry.add(agent)
    recorder.take_event(AgentSpawned(agent.id, agent.name))
    agent.lives += 1
    return agent


async def take_unnamed(taking: Taking, name: str) -> Snapshot:
    """An overlay of another agent's, with a snapshot that no recording names."""
    other = Overlaid(taking.overlaid.project, taking.overlaid.state, taking.overlaid.overlays, name)
    await other.open()
    return await Taking(other, taking.snapshots, taking.state).take(recorded=True)


async def test_a_life_begins_while_a_snapshot_of_another_agent_is_removed(place: Path) -> None:
    for name in ("project", "state", "recordings"):
        (place / name).mkdir(mode=0o700)
    fill(place / "project")
    async with open_taking(place) as taking, open_recorder(place / "recordings", RecordingSettings()) as recorder:
        await taking.overlaid.open()
        await take_unnamed(taking, "other")
        starts = StartTrees(recorder, taking.snapshots)
        async with trio.open_nursery() as nursery, taking.overlaid.overlays.lock("other"):
            nursery.start_soon(starts.release)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(PATIENCE):
                assert await starts.keep(begin(recorder), OVERLAY)
            assert {one.name for one in await taking.snapshots.list(recorded=True)} == {NAME, "other"}
        assert {one.name for one in await taking.snapshots.list(recorded=True)} == {NAME}
        await starts.release()
        assert {one.address for one in await taking.snapshots.list(recorded=True)} == recorder.list_starts() != set()


async def test_one_that_is_being_taken_stays_and_former_ones_of_its_agent_go(place: Path) -> None:
    for name in ("project", "state", "recordings"):
        (place / name).mkdir(mode=0o700)
    async with open_taking(place) as taking, open_recorder(place / "recordings", RecordingSettings()) as recorder:
        await take_unnamed(taking, NAME)
        starts = StartTrees(recorder, taking.snapshots)
        async with trio.open_nursery() as nursery, taking.overlaid.overlays.lock(NAME):
            nursery.start_soon(starts.keep, begin(recorder), OVERLAY)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(starts.release)
            await trio.testing.wait_all_tasks_blocked()
        (kept,) = await taking.snapshots.list(recorded=True)
        assert {kept.address} == recorder.list_starts()


async def test_of_a_resumed_life_it_is_said_that_its_files_are_those_of_the_crash(place: Path) -> None:
    for name in ("project", "state"):
        (place / name).mkdir(mode=0o700)
    async with open_taking(place) as taking:
        begin = (await take_unnamed(taking, "other")).address
        plain, resumed = Life("w/1", NAME, 1.0, start=begin), Life("w/2", NAME, 1.0, start=begin)
        resumed.resumed, resumed.answers = "w-1", 3

        assert (await find_start(taking.snapshots, plain, ""))[1] == []
        (said,) = (await find_start(taking.snapshots, resumed, ""))[1]
        assert said == "its files are as the crash left them after which it got 3 answers of w-1"
