"""Handlers of REPLAY_START, REPLAY_STATUS and REPLAY_STOP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
from attrs import frozen

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.recordings.replay.replays import Replays
from agentos.recordings.replay.text import TextReplay, read_entries
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import replay as calls
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op

SOURCES = "recording or recording_data: expected one of them, the text that RECORD_STATUS exports"


@frozen
class ReplayCalls:
    """Answers them."""

    replays: Replays

    @asynccontextmanager
    async def prepare_start(self, caller: Caller, request: calls.ReplayStart) -> AsyncIterator[Prepared]:
        given = {key: value for key, value in attrs.asdict(request).items() if value is not None}
        error = None if len(given) == 1 else BadRequest(SOURCES)

        async def act(call: Call) -> calls.ReplayStarted:
            self.replays.check_free()
            ((field, text),) = given.items()
            entries = await run_in_thread(read_entries, text, field)
            progress = self.replays.start(TextReplay(entries))
            return calls.ReplayStarted(state=progress.state, total_entries=progress.total)

        yield Prepared((Right("replay_start"),), act, about="", error=error)

    @asynccontextmanager
    async def prepare_status(self, caller: Caller, request: calls.ReplayStatus) -> AsyncIterator[Prepared]:
        async def act(call: Call) -> calls.ReplayProgress:
            now = self.replays.progress
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
                drift=[calls.Drift(**attrs.asdict(one)) for one in now.drift],
                masks=dict(now.masks),
                sealed=now.sealed,
                notes=list(now.notes),
            )

        yield Prepared((Right("replay_status"),), act, about="")

    @asynccontextmanager
    async def prepare_stop(self, caller: Caller, request: calls.ReplayStop) -> AsyncIterator[Prepared]:
        async def act(call: Call) -> calls.ReplayStopped:
            await self.replays.stop()
            return calls.ReplayStopped(state=self.replays.progress.state)

        yield Prepared((Right("replay_stop"),), act, about="")


def syscalls(replays: Replays, max_payload: int) -> tuple[Syscall, ...]:
    handlers = ReplayCalls(replays)
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
