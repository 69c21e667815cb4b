"""Handlers of RECORD_START, RECORD_STOP and RECORD_STATUS."""

from collections.abc import Collection
from functools import partial

from attrs import frozen

from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.private_files import display_path
from agentos.recordings.export import TooLong, list_entries
from agentos.recordings.format import Json, encode_line
from agentos.recordings.reader import BadRecording
from agentos.recordings.recorder.active import Active
from agentos.recordings.recorder.recorder import Recorder
from agentos.recordings.recorder.selection import Selection
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import recordings as calls
from agentos_sdk.errors import AlreadyExists, BadRequest, NotFound, TooLarge, Unavailable
from agentos_sdk.opcodes import Op


@frozen
class RecordingCalls:
    """Answers them. ``most``: bytes of an export."""

    recorder: Recorder
    registry: Registry
    most: int

    async def prepare_start(self, caller: Caller, request: calls.RecordStart) -> Prepared:
        if request.agents is not None and request.filter_agents is not None:
            raise BadRequest("filter_agents: expected either agents, by name, or these, by id")
        if request.tree and request.agents is None:
            raise BadRequest("tree: expected only with agents, by name")

        async def act(call: Call) -> calls.RecordingBegun:
            if self._goes_on is not None:
                name = self._goes_on.manifest.name
                raise AlreadyExists(f"{name} is being recorded: end it by RECORD_STOP or `agentos record --stop` first")
            selection = self._select(request)
            title = request.agents[0] if request.agents and len(request.agents) == 1 else "recording"
            left_out = {Op.THINK: request.include_think, Op.HTTP: request.include_http, Op.EXEC: request.include_exec}
            found = self.recorder.start(title, selection, request.max_bytes, request.max_entries)
            found.left_out = [op.name for op, included in left_out.items() if not included]
            call.remark = found.manifest.name
            return calls.RecordingBegun(name=found.manifest.name, path=display_path(found.target.directory))

        about = ", ".join(map(str, request.agents or request.filter_agents or ())) or "all callers"
        return Prepared((Right("record_start"),), act, about=about[:200])

    def _select(self, request: calls.RecordStart) -> Selection:
        if request.agents is None:
            return Selection(frozenset(request.filter_agents) if request.filter_agents else None)
        for name in request.agents:
            if self.registry.find_by_name(name) is None:
                raise NotFound(f"agents: no agent is called {name!r}")
        return Selection((), frozenset(request.agents), request.tree)

    async def prepare_stop(self, caller: Caller, request: calls.RecordStop) -> Prepared:
        async def act(call: Call) -> calls.RecordingEnded:
            found = self._goes_on
            if found is None:
                raise BadRequest("nothing is being recorded: RECORD_START begins a recording")
            self.recorder.stop(found)
            await self.recorder.queue.flush()
            call.remark, path = found.manifest.name, display_path(found.target.directory)
            return calls.RecordingEnded(entry_count=found.entries, name=found.manifest.name, path=path)

        return Prepared((Right("record_stop"),), act)

    async def prepare_status(self, caller: Caller, request: calls.RecordStatus) -> Prepared:
        async def act(call: Call) -> calls.RecordingStatus:
            found = self.recorder.manual
            if found is None:
                return calls.RecordingStatus(state="IDLE", entry_count=0, recording="[]" if request.export else None)
            entries = await self._list(found, request) if request.export or request.get_entries else None
            text = (
                b"[" + b",".join(map(encode_line, entries)) + b"]" if entries is not None and request.export else None
            )
            return calls.RecordingStatus(
                state="IDLE" if self._goes_on is None else "RECORDING",
                entry_count=found.entries,
                name=found.manifest.name,
                path=display_path(found.target.directory),
                reason=found.manifest.reason,
                recording=text.decode() if text is not None else None,
                entries=entries if request.get_entries else None,
            )

        return Prepared((Right("record_status"),), act)

    async def _list(self, found: Active, request: calls.RecordStatus) -> list[Json]:
        await self.recorder.queue.flush()
        left_out: Collection[str] = found.left_out
        read = partial(list_entries, found.target.directory, left_out, request.since_id, request.limit, self.most)
        try:
            return await run_in_thread(read)
        except TooLong:
            raise TooLarge(f"export: more than {self.most:,} bytes; ask for parts with limit and since_id") from None
        except BadRecording as error:
            raise Unavailable(f"export: {display_path(str(error))}") from None

    @property
    def _goes_on(self) -> Active | None:
        manual = self.recorder.manual
        return manual if manual in self.recorder.active else None

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.RECORD_START, calls.RecordStart, prepare=self.prepare_start, audit="intent"),
            Syscall(Op.RECORD_STOP, calls.RecordStop, prepare=self.prepare_stop, audit="intent"),
            Syscall(Op.RECORD_STATUS, calls.RecordStatus, prepare=self.prepare_status, audit="outcome"),
        )
