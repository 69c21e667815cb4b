"""Handlers of REPLAY_START, REPLAY_STATUS and REPLAY_STOP."""

import os
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import attrs
from attrs import frozen

from agentos.access.callers import Callers
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.recordings.commands import CommandFiles
from agentos.recordings.format import NAME, Life
from agentos.recordings.format import SUFFIX as DIRECTORY_SUFFIX
from agentos.recordings.matching import Difference
from agentos.recordings.reader import BadRecording, RecordedCall, Recording, read_recording
from agentos.recordings.recorder import Recorder
from agentos.recordings.replay.agent import (
    AgentReplay,
    choose_life,
    choose_name,
    describe_files,
    describe_replay,
    find_directory,
    find_spec,
)
from agentos.recordings.replay.files import CommandChanges, StartFiles, find_start
from agentos.recordings.replay.keys import ONLY_SHOWN, ScratchKeys, build_keys
from agentos.recordings.replay.letters import find_letters
from agentos.recordings.replay.life import LifeReplay, load_calls
from agentos.recordings.replay.progress import Progress, Replay, ReplayFailed
from agentos.recordings.replay.replays import Replays
from agentos.recordings.replay.switch import is_of_own_key, list_losses, plan_switch
from agentos.recordings.replay.text import TextReplay, read_entries
from agentos.services.snapshots.snapshots import Snapshots
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import replay as calls
from agentos_sdk.errors import BadRequest, Unavailable
from agentos_sdk.opcodes import Op

SOURCES = "recording, recording_data, path: expected one of them"
MAX_MADE = 1000  # calls in one reply
PATH_FIELDS = ("agent", "code", "until", "then", "edits", "model", "hold")
OF_PATH = f"{', '.join(PATH_FIELDS)}: expected only with path"


@frozen
class ReplayCalls:
    """Answers them."""

    replays: Replays
    recorder: Recorder
    supervision: Supervision
    callers: Callers
    snapshots: Snapshots

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

    async def _open(self, caller: Caller, path: str, request: calls.ReplayStart) -> AgentReplay:
        code = request.code
        place = Path(path) if os.path.isabs(path) else self.recorder.directory / f"{path}{DIRECTORY_SUFFIX}"
        if not os.path.isabs(path) and not NAME.fullmatch(path):
            raise BadRequest(f"path: expected an absolute path or the name of a recording, got {path!r:.200}")
        if code is not None and not os.path.isabs(code):
            raise BadRequest(f"code: expected an absolute path, got {code!r:.200}")
        try:
            recording, life, found = await run_in_thread(_read, place, request.agent)
        except BadRecording as error:
            raise BadRequest(str(error)) from None
        except ReplayFailed as error:
            raise Unavailable(str(error)) from None
        switch, found = plan_switch(found, request.until, request.then, request.edits or {}, request.model)
        if request.hold is not None and not switch.live:
            raise BadRequest('hold: expected only with then = "live"')
        spec = find_spec(self.callers.registry, life.agent)
        overlays, directory = self.snapshots.overlays, find_directory(spec, switch.live)
        start, notes = await find_start(self.snapshots, life, describe_files(directory))
        if start is not None:
            directory = start.directory
        elif directory is None and request.hold:
            directory = await run_in_thread(overlays.make_empty)
        spec = describe_replay(spec, code, switch.live, directory)
        facts = recording.manifest.agents.get(life.agent)
        mark, number = self.recorder.maker.mark_secrets, facts.id if facts is not None else 0
        told = LifeReplay(number, life.agent, life.life, mark, life.exit, switch, self.callers.go_live)
        told.put_files = CommandChanges(recording, self.callers.registry, CommandFiles(self.recorder)).put
        await run_in_thread(told.load, found)
        told.progress.notes += [*notes, *list_losses(found, switch, life)]
        keys = None
        if switch.live:
            letters = find_letters(found, switch)
            origin = f"{recording.manifest.name}@{switch.until}"

            def go_live(caller: Caller) -> None:
                letters.put(self.callers.mail, caller)
                self.recorder.note_forked(caller, origin)

            told.deliver = go_live
            told.progress.notes += letters.notes
            kept = await self.snapshots.read_keys(start) if start is not None else []
            keys = ScratchKeys(self.snapshots.kept.state, build_keys(kept, found, switch, time.time()))
            told.progress.notes += [ONLY_SHOWN] if start is None and any(map(is_of_own_key, found)) else []
            left = await run_in_thread(overlays.store.list_names)  # files of former forks
            # Nothing is awaited from here on until it runs.
            spec = choose_name(spec, lambda name: name in left or self._is_taken(name))
        files = StartFiles(self.snapshots, start, switch.live) if start is not None else None
        hold, flush = bool(request.hold), self.recorder.queue.flush
        return AgentReplay(self.supervision, self.callers, spec, told, caller, flush, hold, files, keys)

    def _is_taken(self, name: str) -> bool:
        return self.callers.registry.is_taken(name) or self.replays.is_known(name)

    async def prepare_status(self, caller: Caller, request: calls.ReplayStatus) -> Prepared:
        async def act(call: Call) -> calls.ReplayProgress:
            now = self.replays.find(request.name)
            return calls.ReplayProgress(
                state=now.state,
                verdict=now.verdict,
                progress=round(now.fraction, 4),
                current_entry=now.current,
                total_entries=now.total,
                entries_replayed=now.replayed,
                entries_skipped=now.skipped,
                divergence=now.divergence,
                error=now.error,
                drift=_list_drift(now.drift),
                masks=dict(now.masks),
                sealed=now.sealed,
                notes=list(now.notes),
                recording=now.recording,
                calls=_list_made(now) if request.calls else None,
            )

        return Prepared((Right("replay_status"),), act, about="")

    async def prepare_stop(self, caller: Caller, request: calls.ReplayStop) -> Prepared:
        async def act(call: Call) -> calls.ReplayStopped:
            await self.replays.stop(request.name)
            return calls.ReplayStopped(state="IDLE")

        return Prepared((Right("replay_stop"),), act, about="")


def _list_made(progress: Progress) -> list[calls.ReplayedCall]:
    last = [*islice(reversed(progress.made.items()), MAX_MADE)]
    return [calls.ReplayedCall(n=n, how=one.how, differences=_list_drift(one.differences)) for n, one in last[::-1]]


def _list_drift(found: Sequence[Difference]) -> list[calls.Drift]:
    return [calls.Drift(**attrs.asdict(one)) for one in found]


def _read(path: Path, agent: str | None) -> tuple[Recording, Life, Sequence[RecordedCall]]:
    recording = read_recording(path)
    life = choose_life(recording, agent)
    return recording, life, load_calls(recording, life)


def syscalls(
    replays: Replays,
    recorder: Recorder,
    supervision: Supervision,
    callers: Callers,
    snapshots: Snapshots,
    max_payload: int,
) -> tuple[Syscall, ...]:
    handlers = ReplayCalls(replays, recorder, supervision, callers, snapshots)
    return (
        Syscall(
            Op.REPLAY_START,
            calls.ReplayStart,
            prepare=handlers.prepare_start,
            limit=max_payload,
            omittable={"recording": "[]"},
            audit="intent",
        ),
        Syscall(Op.REPLAY_STATUS, calls.ReplayStatus, prepare=handlers.prepare_status),
        Syscall(Op.REPLAY_STOP, calls.ReplayStop, prepare=handlers.prepare_stop, audit="intent"),
    )
