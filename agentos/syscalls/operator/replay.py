"""Handlers of REPLAY_START, REPLAY_STATUS and REPLAY_STOP."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
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
from agentos.recordings.reader import BadRecording, Recording, read_recording
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
from agentos.recordings.replay.files import CommandChanges, StartFiles, find_start
from agentos.recordings.replay.keys import ONLY_SHOWN, ScratchKeys, build_keys
from agentos.recordings.replay.letters import find_letters
from agentos.recordings.replay.life import LifeReplay, check_size, load_calls
from agentos.recordings.replay.progress import Progress, Replay, ReplayFailed
from agentos.recordings.replay.replays import Replays
from agentos.recordings.replay.switch import is_of_own_key, list_losses, plan_switch
from agentos.recordings.replay.text import TextReplay, read_entries
from agentos.recordings.replay.tree import MAX_LIVES, TreeReplay, split_lives
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

    async def _open(self, caller: Caller, path: str, request: calls.ReplayStart) -> AgentReplay | TreeReplay:
        code = request.code
        place = Path(path) if os.path.isabs(path) else self.recorder.directory / f"{path}{DIRECTORY_SUFFIX}"
        if not os.path.isabs(path) and not NAME.fullmatch(path):
            raise BadRequest(f"path: expected an absolute path or the name of a recording, got {path!r:.200}")
        if code is not None and not os.path.isabs(code):
            raise BadRequest(f"code: expected an absolute path, got {code!r:.200}")
        try:
            recording = await run_in_thread(read_recording, place)
            is_tree = request.agent is None and len(recording.manifest.lives) > 1
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
    ) -> AgentReplay:
        """The replay of one life; its name is none of those ``taken``, and becomes one."""
        code, life = request.code, choose_life(recording, agent)
        found = await run_in_thread(load_calls, recording, life)
        switch, found = plan_switch(found, request.until, request.then, request.edits or {}, request.model)
        if request.hold is not None and not switch.live:
            raise BadRequest('hold: expected only with then = "live"')
        spec = find_spec(self.callers.registry, life.agent, switch.live)
        overlays, directory = self.snapshots.overlays, find_directory(spec, switch.live)
        start, notes = await find_start(self.snapshots, life, describe_files(directory))
        if start is not None:
            directory = start.directory
        elif directory is None and request.hold:
            directory = await run_in_thread(overlays.make_empty)
        spec = describe_replay(spec, code, switch.live, directory)
        facts = recording.manifest.agents.get(life.agent)
        masks = join_masks(recording.manifest.masks, self.recorder.settings.masks)
        mark, number = self.recorder.maker.mark_secrets, facts.id if facts is not None else 0
        told = LifeReplay(number, life.agent, life.life, mark, life.exit, switch, self.callers.go_live, masks=masks)
        told.hash_seed = life.hash_seed
        told.put_files = CommandChanges(recording, self.callers.registry, CommandFiles(self.recorder)).put
        await run_in_thread(told.load, found)
        lacks = [f"the recording was given away without {one}" for one in recording.manifest.lacks]
        told.progress.notes += [*lacks, *notes, *list_losses(found, switch, life)]
        keys = None
        if switch.live:
            own = await run_in_thread(os.path.samefile, recording.path.parent, self.recorder.directory)
            letters = find_letters(found, switch, own)
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
        if taken is not None:
            spec = choose_name(spec, lambda name: name in taken or self.callers.registry.is_taken(name))
            taken.add(spec.name)
        files = StartFiles(self.snapshots, start, switch.live) if start is not None else None
        hold, flush = bool(request.hold), self.recorder.queue.flush
        return AgentReplay(self.supervision, self.callers, spec, told, caller, flush, hold, files, keys)

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
                lives=[calls.LifeProgress(life=life, **_describe(one)) for life, one in now.lives.items()],
                calls=_list_made(now) if request.calls else None,
            )

        return Prepared((Right("replay_status"),), act, about="")

    async def prepare_stop(self, caller: Caller, request: calls.ReplayStop) -> Prepared:
        async def act(call: Call) -> calls.ReplayStopped:
            await self.replays.stop(request.name)
            return calls.ReplayStopped(state="IDLE")

        return Prepared((Right("replay_stop"),), act, about="")


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


def _list_made(progress: Progress) -> list[calls.ReplayedCall]:
    last = [*islice(reversed(progress.made.items()), MAX_MADE)]
    return [calls.ReplayedCall(n=n, how=one.how, differences=_list_drift(one.differences)) for n, one in last[::-1]]


def _list_drift(found: Sequence[Difference]) -> list[calls.Drift]:
    return [calls.Drift(**attrs.asdict(one)) for one in found]


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
