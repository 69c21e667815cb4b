"""Records calls: chooses what is recorded, takes calls from the event loop and has a thread write them."""

# A caller that is recorded has a table of calls with this observer; no other caller pays for it. The loop only queues:
# twenty times a second a thread makes lines of what is queued, and appends them. Nothing that fails here reaches a
# caller: when the queue, the disk or the recording is full, the recording ends and says so in its manifest.
# What must stay true: the observer neither waits nor raises; a line is whole or isn't there; a life that isn't
# recorded from its first call to its end is marked as one that can't be replayed. docs/decisions/0107.

import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import trio

from agentos import __version__
from agentos.agents.registry import HASH_SEED, Agent, Registry
from agentos.finishing import run_and_finish
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.steps import Observer
from agentos.private_files import display_path, hold_directory
from agentos.recordings.format import SUFFIX, AgentFacts, Life, Manifest, plain_name
from agentos.recordings.kept import list_names, prune
from agentos.recordings.own import Marks
from agentos.services.events import AgentExited, AgentSpawned, Event
from agentos.threads import run_in_thread
from agentos_sdk.opcodes import Op
from agentos_sdk.values import End

from .active import MAX_CHUNK_BYTES, Active, Begun
from .lines import LineMaker, Seen
from .queue import WriteQueue, measure
from .selection import RecordingSettings, Selection
from .writer import FULL, Target

log = logging.getLogger(__name__)

PRUNED_EVERY = 16  # the share of `max_total` that is written between two looks at what is kept: one of 16
OWN = range(Op.RECORD_START, 0x76)  # calls about recordings
EARLIER = "it began before the recording"


class Recorder:
    """The recordings of one kernel; :class:`agentos.kernel.steps.Observer` of what is recorded.

    ``choose_tables`` gives callers, by id or all, the table that they need now.
    """

    def __init__(self, directory: Path, settings: RecordingSettings, marks: Marks, names: Iterable[str] = ()) -> None:
        self.directory, self.settings, self.marks = directory, settings, marks
        self.active: list[Active] = []
        self.manual: Active | None = None  # the one of RECORD_START: the present one, or the last
        self.registry = Registry()
        self.below: Observer | None = None  # of all calls, recorded or not
        self.maker = LineMaker(lambda result: result, tuple)
        self.choose_tables: Callable[[Collection[int] | None], None] = lambda numbers: None
        self.pruned: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint  # is called when recordings may be gone
        self.queue = WriteQueue(self.maker, self._settle)
        self._names = set(names)
        self._order = itertools.count(1)
        self._by_caller: dict[int, tuple[str, Sequence[Active]]] = {}  # life and recordings
        self._calls = WeakKeyDictionary[Call, Begun]()  # under way, in tasks
        self._former: dict[int, int] = {}  # lives that agents of the same name had before, by id
        self._looked_at = 0  # bytes of the active recordings when `prune` was last run
        self._prune = trio.Event()
        self._since = time.time()

    # -- Observing calls -------------------------------------------------------------------------------------------

    def begin(self, call: Call | None) -> Begun:
        below = self.below.begin(None) if self.below is not None else None
        begun = Begun(next(self._order), time.time_ns(), below)
        if call is not None:
            self._calls[call] = begun
            if call.streams:
                call.tee(begun.take)
        return begun

    def end(self, caller: Caller, op: int, request: Any, outcome: object, answer: bytes | None, began: Begun) -> None:
        if self.below is not None:
            self.below.end(caller, op, request, outcome, answer, began.below)
        self._take(caller, op, request, outcome, answer, began)

    def pass_by(self, caller: Caller, op: int, body: bytes, answer: bytes) -> None:
        if self.below is not None:
            self.below.pass_by(caller, op, body, answer)
        self._take(caller, op, body, None, answer, Begun(next(self._order), time.time_ns(), None))

    def miss(self, caller: Caller, what: str) -> None:
        life, recordings = self._look_up(caller)
        self._spoil(recordings, life, what)

    def _take(self, caller: Caller, op: int, request: Any, outcome: object, answer: bytes | None, begun: Begun) -> None:
        try:
            life, recordings = self._look_up(caller)
            if not recordings or op in OWN:
                return
            size = measure(request) + len(answer or b"") + begun.size
            numbers, took = (begun.number, next(self._order)), time.time_ns() - begun.at
            seen = Seen(life, op, numbers, begun.at, took, request, outcome, answer, begun.chunks, size, begun.files)
            if begun.size > MAX_CHUNK_BYTES:
                self._spoil(recordings, life, f"a call streamed more than {MAX_CHUNK_BYTES >> 20} MiB")
            left = self.queue.put(seen, [recording.target for recording in recordings])
            for recording in recordings:
                recording.entries += recording.target not in left
                if recording.target in left:
                    self.stop(recording, "calls came faster than they could be written")
                elif recording.entries == recording.max_entries:
                    self.stop(recording, f"{FULL}: it has {recording.entries} calls")
        except Exception as bug:  # it is no failure of the call
            internal(bug, "the recording of a call")

    def _look_up(self, caller: Caller) -> tuple[str, Sequence[Active]]:
        """The caller's life, and the recordings that have it."""
        return self._by_caller.get(caller.id) or self._find(caller)

    def _find(self, caller: Caller) -> tuple[str, Sequence[Active]]:
        agent = self.registry.get(caller.id) if caller.kind == "agent" else None
        if agent is None:
            life = "operator/1" if caller.kind == "operator" else f"guest {plain_name(caller.name)}/1"
        else:
            life = self._name_life(agent)
        above = agent.parent if agent is not None else None
        found = [each for each in self.active if each.selection.covers(caller.id, caller.name, above)]
        for recording in found if agent is None else ():
            self._add_life(recording, life, life[:-2], caller.id, None).leave_out("its caller is no agent")
        self._by_caller[caller.id] = life, found
        return life, found

    def _spoil(self, recordings: Sequence[Active], life: str, reason: str) -> None:
        for recording in recordings:
            if (found := recording.lives.get(life)) is not None and found.replayable:
                found.spoil(reason)
                self._note_change(recording)

    def note_resumed(self, caller: Caller, former: str, answers: int, hash_seed: int) -> None:
        """The caller's life is given ``answers`` replies of the recording ``former``, and its hash seed."""
        for life in self._change_life(caller):
            life.resumed, life.answers, life.hash_seed = former, answers, hash_seed

    def note_forked(self, caller: Caller, origin: str) -> None:
        """The caller's life goes live at ``origin``, which is RECORDING@NUMBER."""
        for life in self._change_life(caller):
            life.forked = origin

    def _change_life(self, caller: Caller) -> Iterator[Life]:
        """The caller's present life in each recording that has it, whose manifest is written when it was changed."""
        name, recordings = self._look_up(caller)
        for recording in recordings:
            if (life := recording.lives.get(name)) is not None:
                yield life
                self._note_change(recording)

    # -- What is recorded ------------------------------------------------------------------------------------------

    def wants(self, number: int) -> bool:
        """Whether calls of this caller are recorded now."""
        if not self.active:
            return False
        agent = self.registry.get(number)
        name, above = (agent.name, agent.parent) if agent is not None else ("", None)
        return any(each.selection.covers(number, name, above) for each in self.active)

    def take_event(self, event: Event) -> None:
        """Begin and end the lives of agents; a subscriber."""
        if isinstance(event, AgentSpawned):
            agent = self.registry.get(event.agent_id)
            if agent is not None:
                self._begin_life(agent)
        elif isinstance(event, AgentExited) and self.active:
            self._end_life(event)

    def _begin_life(self, agent: Agent) -> None:
        if agent.spec.record or agent.name in self.settings.agents:
            share = self.settings.max_total // 4
            started = self._start(agent.name, Selection([agent.id]), share, automatic=True)
            agent.recording = display_path(started.target.directory)
        for recording in self.active:
            if recording.selection.covers_agent(agent):
                if not agent.lives:
                    self._count_former(recording, agent)
                self._add_life(recording, self._name_life(agent, next_=True), agent.name, agent.id, agent)
                self.choose_tables([agent.id])
        self._by_caller.pop(agent.id, None)

    def _count_former(self, recording: Active, agent: Agent) -> None:
        """An agent that is spawned anew under its name goes on with the numbers of the former one's lives."""
        self._former = {number: count for number, count in self._former.items() if self.registry.get(number)}
        lives = [life.life for life in recording.manifest.lives if life.agent == agent.name]
        if lives:
            self._former[agent.id] = max(int(life.rpartition("/")[2]) for life in lives)

    def _name_life(self, agent: Agent, *, next_: bool = False) -> str:
        """The name of an agent's present life, or of the next one, which is about to begin."""
        return f"{plain_name(agent.name)}/{self._former.get(agent.id, 0) + agent.lives + next_}"

    def _add_life(self, recording: Active, name: str, agent: str, number: int, spec_of: Agent | None) -> Life:
        if name in recording.lives:
            return recording.lives[name]
        life = recording.lives[name] = Life(name, agent, time.time())
        recording.manifest.lives.append(life)
        facts = AgentFacts(number)
        if spec_of is not None:
            spec = spec_of.spec
            life.hash_seed = spec_of.hash_seed if HASH_SEED not in spec.env else None
            facts.command = [*(spec.command or [spec.script or ""]), *spec.args]
            facts.python = spec.python
            if spec.network == "host":
                life.spoil("it has the host's network, which isn't recorded")
        recording.manifest.agents[agent] = facts
        self._note_change(recording)
        return life

    def note_start(self, agent: Agent, start: str | None, why_not: str | None = None, size: int = 0) -> None:
        """Have an agent's present life name what it began with, or say why that isn't kept."""
        for recording in self.active:
            if (life := recording.lives.get(self._name_life(agent))) is not None:
                life.start, life.no_files, life.file_bytes = start, why_not, size
                self._note_change(recording)

    def keeps_files(self, caller: Caller) -> bool:
        """Whether a caller's present life has what it began with, so that what its commands change is kept, too."""
        life, recordings = self._look_up(caller)
        found = [recording.lives.get(life) for recording in recordings]
        return any(one is not None and one.start is not None and one.lost is None for one in found)

    def find_call(self, call: Call, caller: Caller) -> tuple[int | None, Sequence[Target]]:
        """The first number of a call under way, None if it is none of its own, and what it will be written to."""
        begun, (_, recordings) = self._calls.get(call), self._look_up(caller)
        return begun.number if begun is not None else None, [each.target for each in recordings]

    def note_files(self, caller: Caller, call: Call, target: Target, paths: int, size: int) -> None:
        """What a command has changed is kept: so many paths, and bytes."""
        self._calls[call].files = paths
        target.kept += size
        life, recordings = self._look_up(caller)
        for recording in recordings if paths else ():
            if recording.target is target and (found := recording.lives.get(life)) is not None:
                found.file_bytes += size
                self._note_change(recording)

    def lose_files(self, caller: Caller, why: str) -> None:
        """What a command of the caller's has changed isn't kept, and from now on nothing is."""
        for life in self._change_life(caller):
            life.lost = life.lost or why

    def list_starts(self) -> set[str]:
        """What the lives of the active recordings name."""
        return {life.start for recording in self.active for life in recording.manifest.lives if life.start}

    def _end_life(self, event: AgentExited) -> None:
        agent = self.registry.get(event.agent_id)
        self._by_caller.pop(event.agent_id, None)
        name, end = (self._name_life(agent), agent.end) if agent is not None else ("", None)
        for recording in [*self.active]:
            if (life := recording.lives.pop(name, None)) is not None:
                life.ended, life.exit = time.time(), event.reason
                life.failed = is_failed(end)
                self._note_change(recording)
                if recording.automatic:
                    self.stop(recording)

    def start(
        self, name: str, selection: Selection, max_bytes: int | None = None, max_entries: int | None = None
    ) -> Active:
        """Begin the recording that the operator asked for. Lives that have begun can't be replayed."""
        recording = self._start(name, selection, max_bytes or self.settings.max_total)
        recording.max_entries = max_entries
        self.manual = recording
        for agent in self.registry:
            if agent.pid is not None and selection.covers_agent(agent):
                self._add_life(recording, self._name_life(agent), agent.name, agent.id, agent).leave_out(EARLIER)
        self._change_tables(recording)
        return recording

    def _start(self, name: str, selection: Selection, max_bytes: int, *, automatic: bool = False) -> Active:
        title = plain_name(name)
        own = next(found for n in itertools.count(1) if (found := f"{title}-{n}") not in self._names)
        self._names.add(own)
        manifest = Manifest(version=__version__, name=own, began=time.time(), automatic=automatic)
        manifest.masks, manifest.mark = [*self.settings.masks], self.marks.make(manifest)
        target = Target(self.directory / f"{own}{SUFFIX}", max_bytes, rotates=automatic)
        recording = Active(manifest, target, selection, automatic)
        self.active.append(recording)
        self._note_change(recording)
        return recording

    def stop(self, recording: Active, reason: str | None = None) -> None:
        """End a recording; without a reason because it was asked for, or its life has ended."""
        if recording not in self.active:
            return
        self.active.remove(recording)
        manifest = recording.manifest
        manifest.ended, manifest.reason = time.time(), reason
        for life in recording.lives.values():
            life.spoil(reason or "the recording was stopped before it ended")
        recording.lives.clear()
        if reason is not None:
            log.warning("the recording %s has ended: %s", manifest.name, reason)
        self._change_tables(recording)
        self._note_change(recording)
        self._prune.set()

    def _change_tables(self, recording: Active) -> None:
        """Have the callers that it covers get the tables that they need now."""
        self._by_caller.clear()
        chosen = recording.selection
        if chosen.callers is None:
            self.choose_tables(None)
            return
        self.choose_tables({*chosen.callers, *(agent.id for agent in self.registry if chosen.covers_agent(agent))})

    def _note_change(self, recording: Active) -> None:
        self.queue.put_manifest(recording.target, recording.manifest)

    # -- Writing ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        for recording in [*self.active]:
            if recording.target.ended is not None:
                self.stop(recording, recording.target.ended)
            elif recording.target.cut:
                for life in recording.lives:
                    self._spoil([recording], life, "it was too long to be kept whole: it has its last calls")
        if self._active_bytes() > self._looked_at + self.settings.max_total // PRUNED_EVERY:
            self._prune.set()

    def _active_bytes(self) -> int:
        return sum(recording.target.size + recording.target.kept for recording in self.active)

    async def serve(self) -> None:
        """Remove what isn't kept whenever a recording has ended or grown, until cancelled."""
        while True:
            await self._prune.wait()
            self._prune = trio.Event()
            await self.queue.flush()
            try:
                total = await run_in_thread(prune, self.directory, self.marks, self.settings.max_total, self._since)
            except OSError as error:
                log.warning("old recordings can't be removed: %s", error.strerror)
                continue
            await self.pruned()
            self._looked_at = self._active_bytes()
            if total > self.settings.max_total and self.active:
                largest = max(self.active, key=lambda recording: recording.target.size)
                self.stop(largest, f"{FULL}: all recordings take {total:,} bytes, see [recording] max_total")

    def close(self) -> None:
        """End all recordings, and write what waits."""
        try:
            for recording in [*self.active]:
                self.stop(recording)
        finally:
            self.queue.close()


def is_failed(end: End | None) -> bool:
    """Whether a life ended otherwise than by itself with status 0, or by request."""
    return end is not None and end.exit_code != 0 and not end.reason.startswith("stopped:")


@asynccontextmanager
async def open_recorder(directory: Path, settings: RecordingSettings) -> AsyncIterator[Recorder]:
    """The recorder of the directory in a state directory, created if it is missing; raises ``OSError``.

    All calls that end until the block ends, cancelled or not, are written before it is left.
    """
    with hold_directory(directory) as held:
        marks = await run_in_thread(Marks.open, directory.parent)
        recorder = Recorder(held, settings, marks, await run_in_thread(lambda: [*list_names(held)]))
        async with run_and_finish(recorder.queue.serve, lambda failure: recorder.close()):
            yield recorder
