"""Handlers of REPLAY_START, REPLAY_STATUS and REPLAY_STOP."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import trio
from attrs import frozen

from agentos.access.callers import Callers
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.recordings.format import NAME
from agentos.recordings.format import SUFFIX as DIRECTORY_SUFFIX
from agentos.recordings.masks import BadMask, join_masks
from agentos.recordings.matching import Difference
from agentos.recordings.reader import BadRecording, RecordedCall, Recording, read_recording
from agentos.recordings.recorder.commands import CommandFiles
from agentos.recordings.recorder.recorder import Recorder
from agentos.recordings.replay.agent import SUFFIX as REPLAY_SUFFIX
from agentos.recordings.replay.agent import (
    AgentReplay,
    choose_life,
    choose_name,
    describe_files,
    describe_replay,
    find_directory,
    find_spec,
)
from agentos.recordings.replay.files import CommandChanges, StartFiles, find_start, without_start
from agentos.recordings.replay.keys import ONLY_SHOWN, ScratchKeys, build_keys
from agentos.recordings.replay.life import LifeReplay, check_size, load_calls
from agentos.recordings.replay.progress import Progress, Replay, ReplayFailed
from agentos.recordings.replay.replays import Replays
from agentos.recordings.replay.switch import is_of_own_key, list_losses, plan_switch
from agentos.recordings.replay.text import TextReplay, read_entries
from agentos.recordings.replay.tree.cut import Member, find_cut, read_calls
from agentos.recordings.replay.tree.fork import Branch, TreeFork
from agentos.recordings.replay.tree.lives import MAX_LIVES, TreeReplay, split_lives
from agentos.recordings.replay.tree.names import FORK_SUFFIX, TreeNames, find_free
from agentos.recordings.replay.waiting_messages import WaitingMessages, find_waiting
from agentos.services.snapshots.records import Snapshot
from agentos.services.snapshots.snapshots import Snapshots
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import replay as calls
from agentos_sdk.errors import BadRequest, Unavailable
from agentos_sdk.opcodes import Op

SOURCES = "recording, recording_data, path: expected one of them"
MAX_MADE = 1000  # calls in one reply
FORK_FIELDS = ("until", "then", "edits", "model", "hold")
PATH_FIELDS = ("agent", "code", *FORK_FIELDS)
OF_PATH = f"{', '.join(PATH_FIELDS)}: expected only with path"


@frozen
class ReplayCalls:
    """Answers them."""

    replays: Replays
    recorder: Recorder
    supervision: Supervision
    callers: Callers
    snapshots: Snapshots
    most: int  # bytes of a body

    async def prepare_start(self, caller: Caller, request: calls.ReplayStart) -> Prepared:
        texts = {"recording": request.recording, "recording_data": request.recording_data}
        given = {field: text for field, text in texts.items() if text is not None}
        error = None
        if len(given) + (request.path is not None) != 1:
            error = BadRequest(SOURCES)
        elif request.path is None and any(getattr(request, name) is not None for name in PATH_FIELDS):
            error = BadRequest(OF_PATH)

        async def act(call: Call) -> calls.ReplayStarted:
            self.replays.check_free(request.then == "live")
            if request.path is not None:
                replay: Replay = await self._open(caller, request.path, request)
            else:
                ((field, text),) = given.items()
                replay = TextReplay(await run_in_thread(read_entries, text, field))
            progress = self.replays.start(replay)
            notes = list(progress.notes)
            return calls.ReplayStarted(
                state=progress.state, total_entries=progress.total, notes=notes, name=replay.name
            )

        return Prepared((Right("replay_start"),), act, about=request.path or "", error=error)

    async def _open(self, caller: Caller, path: str, request: calls.ReplayStart) -> Replay:
        code = request.code
        place = Path(path) if os.path.isabs(path) else self.recorder.directory / f"{path}{DIRECTORY_SUFFIX}"
        if not os.path.isabs(path) and not NAME.fullmatch(path):
            raise BadRequest(f"path: expected an absolute path or the name of a recording, got {path!r:.200}")
        if code is not None and not os.path.isabs(code):
            raise BadRequest(f"code: expected an absolute path, got {code!r:.200}")
        try:
            recording = await run_in_thread(read_recording, place)
            is_tree = request.agent is None and len(recording.manifest.lives) > 1
            if is_tree and request.then == "live":
                return await self._open_tree(caller, recording, request)
            if is_tree and all(getattr(request, name) is None for name in FORK_FIELDS):
                return await self._open_all(caller, recording, request)
            return await self._open_one(caller, recording, request.agent, request)
        except (BadRecording, BadMask) as error:
            raise BadRequest(str(error)) from None
        except ReplayFailed as error:
            raise Unavailable(str(error)) from None
        except OSError as error:
            raise Unavailable(f"{place}: {error.strerror}") from None

    async def _open_all(self, caller: Caller, recording: Recording, request: calls.ReplayStart) -> TreeReplay:
        """The replay of all lives of a recording."""
        lives, notes = split_lives(recording.manifest)
        if not lives:
            raise ReplayFailed("; ".join(notes))
        if len(lives) > MAX_LIVES:
            raise BadRequest(f"agent: the recording has {len(lives)} lives, more than {MAX_LIVES}: name one of them")
        counts = await run_in_thread(count_calls, recording)
        taken = set[str]()  # names of those that were opened, which may not have begun

        async def open_one(life: str) -> Replay:
            return await self._open_one(caller, recording, life, request, taken)

        name = f"{recording.manifest.name}{REPLAY_SUFFIX}"
        return TreeReplay(name, {life.life: counts[life.life] for life in lives}, open_one, notes)

    async def _open_one(
        self,
        caller: Caller,
        recording: Recording,
        agent: str | None,
        request: calls.ReplayStart,
        taken: set[str] | None = None,
        member: Member | None = None,
    ) -> AgentReplay:
        """The replay of one life; its name is none of those ``taken``, and becomes one. ``member``: it is of a fork."""
        code, life = request.code, member.life if member is not None else choose_life(recording, agent)
        found = member.calls if member is not None else await run_in_thread(load_calls, recording, life)
        until, edits = (request.until, request.edits or {}) if member is None else limit_switch(member, request)
        switch, found = plan_switch(found, until, request.then, edits, request.model)
        if member is not None:
            switch = attrs.evolve(switch, in_flight=member.in_flight)
        if request.hold is not None and not switch.live:
            raise BadRequest('hold: expected only with then = "live"')
        is_declared = switch.live and (member is None or member.parent is None)
        spec = find_spec(self.callers.registry, life.agent, is_declared)
        overlays, directory = self.snapshots.overlays, find_directory(spec, switch.live)
        own = await self._is_own(recording)
        start, notes = await find_start(self.snapshots, life if own else without_start(life), describe_files(directory))
        if start is not None:
            directory = start.directory
        elif directory is None and request.hold:
            directory = await run_in_thread(overlays.make_empty)
        spec = describe_replay(spec, code, switch.live, directory)
        facts = recording.manifest.agents.get(life.agent)
        masks = join_masks(recording.manifest.masks, self.recorder.settings.masks)
        number = member.number if member is not None else facts.id if facts is not None else 0
        mark = self.recorder.maker.mark_secrets
        told = LifeReplay(number, life.agent, life.life, mark, life.exit, switch, self.callers.go_live, masks=masks)
        told.hash_seed, told.is_foreign = life.hash_seed, not own
        told.put_files = CommandChanges(recording, self.callers.registry, CommandFiles(self.recorder)).put
        await run_in_thread(told.load, found)
        lacks = [f"the recording was given away without {one}" for one in recording.manifest.lacks]
        kept = member.kept if member is not None else ()
        told.progress.notes += [*lacks, *notes, *list_losses(found, switch, life, kept)]
        keys = None
        if switch.live:
            if member is None:
                waiting = find_waiting(found, switch, own)
                told.deliver = partial(self._deliver, f"{recording.manifest.name}@{switch.until}", waiting=waiting)
                told.progress.notes += waiting.notes
            keys = await self._find_keys(told, found, start)
            left = await run_in_thread(overlays.store.list_names)  # files of former forks
            # Nothing is awaited from here on until it runs.
            spec = choose_name(spec, lambda name: name in left or name in (taken or ()) or self._is_taken(name))
        if taken is not None:
            spec = choose_name(spec, lambda name: name in taken or self.callers.registry.is_taken(name))
            taken.add(spec.name)
        files = StartFiles(self.snapshots, start, switch.live) if start is not None else None
        hold, flush = bool(request.hold), self.recorder.queue.flush
        return AgentReplay(self.supervision, self.callers, spec, told, caller, flush, hold, files, keys)

    async def _find_keys(self, told: LifeReplay, found: Sequence[RecordedCall], start: Snapshot | None) -> ScratchKeys:
        """The keys of a life that goes on live, as they were then."""
        had = await self.snapshots.read_keys(start) if start is not None else []
        told.progress.notes += [ONLY_SHOWN] if start is None and any(map(is_of_own_key, found)) else []
        return ScratchKeys(self.snapshots.kept.state, build_keys(had, found, told.switch, time.time()))

    async def _open_tree(self, caller: Caller, recording: Recording, request: calls.ReplayStart) -> TreeFork:
        """The fork of all lives of a recording at one number of its order."""
        if request.code is not None:
            raise BadRequest("code: expected only with agent, where a recording has several lives")
        if not await self._is_own(recording):
            raise BadRequest("path: only a recording that this kernel has made can be forked with all its lives")
        found = await run_in_thread(read_calls, recording)
        last = max((call.end for call in found), default=0)
        if request.until is None or not 1 <= request.until <= last + 1:
            raise BadRequest(f"until: the last call of the recording ends at {last}: expected 1 to {last + 1}")
        edited = check_edits(found, request.edits or {}, request.until)
        cut = await run_in_thread(find_cut, recording.manifest, found, request.until, edited)
        names, gate, taken = TreeNames(self.callers.registry, cut.gone), trio.Event(), set[str]()
        branches = dict[str, Branch]()
        deliver = partial(self._deliver, f"{recording.manifest.name}@{request.until}")
        name = f"{recording.manifest.name}{FORK_SUFFIX}"
        fork = TreeFork("", branches, names, gate, deliver)
        for member in cut.members:
            replay = await self._open_one(caller, recording, None, request, taken, member)
            replay.life.names, replay.life.gate = names, gate
            replay.parent = partial(fork.find_agent, member.parent)
            waiting = WaitingMessages(cut.at, member.waiting, member.later)
            replay.progress.notes += waiting.notes
            branches[member.life.agent] = Branch(member, replay, waiting)
        fork.name = find_free(name, self.replays.is_known)
        return fork

    async def _is_own(self, recording: Recording) -> bool:
        """Whether this kernel has made it, and it lies where that did."""
        is_there = await run_in_thread(os.path.samefile, recording.path.parent, self.recorder.directory)
        return is_there and self.recorder.marks.is_own(recording.manifest)

    def _deliver(
        self,
        origin: str,
        caller: Caller,
        waiting: WaitingMessages,
        find: Callable[[Any], Any] = lambda recorded: recorded,
    ) -> None:
        """An agent goes live from ``origin`` with what waited in its mailbox."""
        waiting.put(self.callers.mail, caller, find)
        self.recorder.note_forked(caller, origin)

    def _is_taken(self, name: str) -> bool:
        return self.callers.registry.is_taken(name) or self.replays.is_known(name)

    async def prepare_status(self, caller: Caller, request: calls.ReplayStatus) -> Prepared:
        async def act(call: Call) -> calls.ReplayProgress:
            now = self.replays.find(request.name)
            return calls.ReplayProgress(
                **_describe(now),
                progress=round(now.fraction, 4),
                current_entry=now.current,
                recording=now.recording,
                lives=[
                    calls.LifeProgress(life=life, agent=one.agent, recording=one.recording, **_describe(one))
                    for life, one in now.lives.items()
                ],
                calls=_list_made(now) if request.calls else None,
            )

        return Prepared((Right("replay_status"),), act, about="")

    async def prepare_stop(self, caller: Caller, request: calls.ReplayStop) -> Prepared:
        async def act(call: Call) -> calls.ReplayStopped:
            await self.replays.stop(request.name)
            return calls.ReplayStopped(state="IDLE")

        return Prepared((Right("replay_stop"),), act, about="")

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(
                Op.REPLAY_START,
                calls.ReplayStart,
                prepare=self.prepare_start,
                limit=self.most,
                omittable={"recording": "[]"},
                audit="intent",
            ),
            Syscall(Op.REPLAY_STATUS, calls.ReplayStatus, prepare=self.prepare_status),
            Syscall(Op.REPLAY_STOP, calls.ReplayStop, prepare=self.prepare_stop, audit="intent"),
        )


def _describe(now: Progress) -> dict[str, Any]:
    """What REPLAY_STATUS says of a replay and of each of its lives."""
    return {
        "state": now.state,
        "verdict": now.verdict,
        "total_entries": now.total,
        "entries_replayed": now.replayed,
        "entries_skipped": now.skipped,
        "divergence": now.divergence,
        "error": now.error,
        "drift": _list_drift(now.drift),
        "masks": dict(now.masks),
        "sealed": now.sealed,
        "notes": list(now.notes),
    }


def count_calls(recording: Recording) -> Counter[str]:
    """How many calls each life has. Reads the file."""
    check_size(recording)
    return Counter(call.life for call in recording.calls())


def limit_switch(member: Member, request: calls.ReplayStart) -> tuple[int, dict[str, Any]]:
    """Of a fork's ``until`` and ``edits`` those that are about one life."""
    numbers = {str(call.begin) for call in member.calls}
    last = max((call.begin for call in member.calls), default=0)
    edits = {key: reply for key, reply in (request.edits or {}).items() if key in numbers}
    return min(request.until or 1, last + 1), edits


def check_edits(found: Sequence[RecordedCall], edits: Mapping[str, Any], until: int) -> set[int]:
    """The numbers of the edited calls. Raises ``BadRequest`` for one that isn't there, or isn't before ``until``."""
    numbers = {str(call.begin): call.begin for call in found if call.begin < until}
    for key in edits:
        if key not in numbers:
            raise BadRequest(f"edits.{key[:40]}: the recording has no call with this number before {until}")
    return {numbers[key] for key in edits}


def _list_made(progress: Progress) -> list[calls.ReplayedCall]:
    last = [*islice(reversed(progress.made.items()), MAX_MADE)]
    return [calls.ReplayedCall(n=n, how=one.how, differences=_list_drift(one.differences)) for n, one in last[::-1]]


def _list_drift(found: Sequence[Difference]) -> list[calls.Drift]:
    return [calls.Drift(**attrs.asdict(one)) for one in found]
