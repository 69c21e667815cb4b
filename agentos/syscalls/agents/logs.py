"""Handler of LOGS: the last lines of an agent from memory, or lines of any agents and runs from the log on disk."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import trio
from attrs import frozen
from msgspec import Struct, field

from agentos.agents.life.life import wait_first
from agentos.agents.registry import Agent, Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import MAX_BODY_BYTES, Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared, require_still
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.replies import encode_in_turns
from agentos.services.logs.files import KERNEL, Line, Origin
from agentos.services.logs.log import Logs
from agentos.services.logs.pattern import Pattern, PatternError
from agentos.services.logs.query import Follower, LogReader, Selection
from agentos.services.logs.query import Page as LogPage
from agentos_sdk.calls import agents as calls
from agentos_sdk.errors import BadRequest, NotFound
from agentos_sdk.opcodes import Op

MAX_TAIL = 2000  # lines in one reply
DEFAULT_TAIL = 100
MAX_NAMES = 100  # agents in one request of an agent
STREAMS = ("stdout", "stderr", "kernel")

Includes = Callable[[str, int, Origin], bool]


@frozen
class Page:
    """The reply, and each CHUNK of a followed log."""

    success: bool = True
    lines: Sequence[object] = ()
    missed: int = 0


class LogCalls(Struct, frozen=True):
    """The handler of LOGS."""

    registry: Registry
    reader: LogReader
    paging: trio.Lock = field(default_factory=trio.Lock)  # a long page takes 5 ms: other tasks run between two of them

    async def prepare(self, caller: Caller, request: calls.Logs) -> Prepared:
        """Without a filter, the output of one known agent is read from memory."""
        tail = DEFAULT_TAIL if request.tail is None else request.tail
        filters = (request.names, request.since, request.until, request.grep, request.stream, request.run)
        one = self._find(caller, request) if (request.name, request.id) != (None, None) else None
        if one is None or any(given is not None for given in filters):
            rights, includes = self._choose(caller, request, one)
            disk = partial(self._read_disk, request, rights, includes, one, tail)
            return Prepared(rights, disk, about=", ".join(request.names or [request.name or "all agents"]))

        right = Right("logs", agent=one.id)

        async def act(call: Call) -> Page:
            check_tail(tail)
            begin = max(0, one.output.end - tail)
            if request.follow:
                call.require_stream("follow")
                return await follow_output(call, right, one, begin)
            while True:
                await caller.allowance.wait_for_reply_room()  # one that doesn't read its replies gets no more of them
                async with self.paging:
                    if caller.allowance.replies < MAX_BODY_BYTES:
                        return Page(True, *one.output.since(begin))

        return Prepared((right,), act)

    def _find(self, caller: Caller, request: calls.Logs) -> Agent | None:
        """The agent of a request that names one. None: it has only a log on disk, which only the operator may read."""
        try:
            return self.registry.find(request.id, request.name)
        except NotFound:
            if caller.kind == "operator" and request.name is not None and self._has_log(request.name):
                return None
            raise

    def _has_log(self, name: str) -> bool:
        return name == KERNEL or name in self.reader.logs.files

    def _choose(self, caller: Caller, request: calls.Logs, one: Agent | None) -> tuple[tuple[Right, ...], Includes]:
        """The rights that a request needs, and which logs it is about.

        The operator may read whatever has a name. Others read of agents that they may ask about now: what these wrote
        in this run, and what agents declared by the same names wrote in earlier runs.
        """
        if request.names is not None and (request.name, request.id) != (None, None):
            raise BadRequest("names: expected only one of name, id and names")
        names = request.names if request.names is not None else None if request.name is None else [request.name]
        if caller.kind == "operator" and request.id is None:
            for name in names or ():
                if self.registry.find_by_name(name) is None and not self._has_log(name):
                    raise NotFound(f"no agent is called {name!r}")
            chosen = frozenset(names) if names is not None else None
            return (Right("logs"),), lambda name, run, origin: chosen is None or name in chosen
        if one is not None:
            agents = [one]
        elif names is not None:
            if len(names) > MAX_NAMES:
                raise BadRequest(f"names: expected at most {MAX_NAMES}, got {len(names)}")
            agents = [self.registry.find(None, name) for name in names]
        else:
            own = [agent for agent in self.registry if self.registry.is_own(caller, agent.id)][-MAX_NAMES:]
            decide = caller.authorizer.decide
            agents = [one for one in own if decide(caller, Right("logs", agent=one.id)).effect == "allow"]
        rights = tuple(Right("logs", agent=agent.id) for agent in agents) or (Right("logs", agent=caller.id),)
        ids, run = {agent.id for agent in agents}, self.reader.logs.run
        declared = {agent.name for agent in agents if agent.declared}
        return (
            rights,
            lambda name, at, origin: (at == run and origin.id in ids) or (origin.declared and name in declared),
        )

    async def _read_disk(
        self,
        request: calls.Logs,
        rights: Sequence[Right],
        includes: Includes,
        one: Agent | None,
        tail: int,
        call: Call,
    ) -> Page:
        check_tail(tail)
        selection = self._select(request, includes)
        named = request.name is None and request.id is None
        if request.follow:
            call.require_stream("follow")
            last = None if request.since is not None and request.tail is None else tail
            return await self._follow(call, rights, selection, last, one, named)
        async with call.caller.turn:
            await call.caller.allowance.wait_for_reply_room()
            lines, left_out = await self.reader.read_last(selection, tail)
        return Page(lines=describe_lines(lines, named), missed=left_out + self.reader.count_lost(selection))

    def _select(self, request: calls.Logs, includes: Includes) -> Selection:
        """The selection of a request; raises ``BadRequest``."""
        if request.stream is not None and request.stream not in STREAMS:
            raise BadRequest(f"stream: expected one of {', '.join(STREAMS)}, got {request.stream!r}")
        if request.run is not None and request.run < 0:
            raise BadRequest(f"run: expected 0 (this run of the kernel), 1 (the one before) or more, got {request.run}")
        try:
            pattern = Pattern(request.grep) if request.grep is not None else None
        except PatternError as error:
            raise BadRequest(f"grep: {error}") from None
        return Selection(
            includes,
            -math.inf if request.since is None else request.since,
            math.inf if request.until is None else request.until,
            request.stream,
            pattern,
            None if request.run is None else self.reader.logs.run - request.run,
            with_kernel=includes(KERNEL, self.reader.logs.run, Origin(0, declared=False, owner=KERNEL)),
        )

    async def _follow(
        self,
        call: Call,
        rights: Sequence[Right],
        selection: Selection,
        tail: int | None,
        one: Agent | None,
        named: bool,
    ) -> Page:
        """Stream the last lines (None: all), then new ones until ``until``, or until the agent has ended for good."""
        reader, turn = self.reader, call.caller.turn  # however much a caller follows, it reads one thing at a time
        over = one.over.is_set if one is not None else lambda: False
        is_past = selection.run is not None and selection.run != reader.logs.run

        async def send(lines: Sequence[Line], missed: int) -> None:
            if lines or missed:
                require_still(call.caller, rights)
                await call.send(await encode_in_turns(Page(lines=describe_lines(lines, named), missed=missed)))

        with ExitStack() as stack:
            async with turn:
                # What is read is what is there at this moment: a line that comes later is the follower's.
                follower = stack.enter_context(Follower(reader.logs, selection))
                missed = reader.count_lost(selection)
                if tail is None:
                    reading = await reader.open(selection)
                    page = await reader.next_page(reading)
                else:
                    lines, left_out = await reader.read_last(selection, tail)
                    page, missed = LogPage(lines, done=True), missed + left_out
            await send(page.lines, missed)
            while not page.done:
                async with turn:
                    page = await reader.next_page(reading)
                await send(page.lines, 0)
            with trio.move_on_after(max(0.0, min(selection.until - time.time(), 1e9))):
                while not is_past:
                    ended = over()
                    lines, missed = follower.take_all()
                    async with turn:
                        found = await reader.select(selection, lines)
                    await send(found, missed)
                    if ended:
                        break
                    await wait_first(follower.wait, *([one.over.wait] if one is not None else []))
        return Page()


def syscalls(registry: Registry, logs: Logs) -> tuple[Syscall, ...]:
    return (Syscall(Op.LOGS, calls.Logs, prepare=LogCalls(registry, LogReader(logs)).prepare),)


def check_tail(tail: int) -> None:
    if not 0 <= tail <= MAX_TAIL:
        raise BadRequest(f"tail: expected 0 to {MAX_TAIL}, got {tail}")


def describe_lines(lines: Sequence[Line], named: bool) -> list[Mapping[str, Any]]:
    """Lines as in the reply; with their agents' names if the request may be about several."""
    return [
        {"at": line.at, "stream": line.stream, "text": line.text, **({"name": line.name} if named else {})}
        for line in lines
    ]


async def follow_output(call: Call, right: Right, agent: Agent, begin: int) -> Page:
    """Stream lines until the agent has ended for good; the reply itself carries the last ones."""
    while True:
        lines, missed = agent.output.since(begin)
        begin = agent.output.end
        require_still(call.caller, [right])
        if agent.over.is_set():
            return Page(True, lines, missed)
        if lines:
            await call.send(await encode_in_turns(Page(True, lines, missed)))
        await wait_first(agent.over.wait, partial(agent.output.wait_beyond, begin))
