"""Handlers of SPAWN, KILL, LIST, WAIT, PAUSE, RESUME, TREE and LOGS."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import trio
from attrs import field, frozen

from agentos.agents.life import first
from agentos.agents.lifecycle import NEXT, State
from agentos.agents.output import Line
from agentos.agents.registry import Agent, Registry
from agentos.agents.supervision import Supervision
from agentos.agents.tree import picture
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.replies import encode_in_turns
from agentos.kernel.table import Syscall
from agentos.llm import line as llm
from agentos.llm.jobs import queue_names
from agentos.llm.queue_states import QueueState
from agentos.sandbox.sandbox import Sandbox
from agentos.services.events import AgentEvent, AgentPaused, AgentResumed
from agentos_sdk import codec
from agentos_sdk.calls import agents as calls
from agentos_sdk.errors import BadRequest, NotFound, Timeout
from agentos_sdk.opcodes import Op

from .rights import to_agent
from .spawn import Spawning

MAX_TAIL = 2000  # lines in one reply
BATCH = 50  # agents that LIST describes between two checkpoints: 1 ms


@frozen
class Known:
    """Handlers of the calls about existing agents."""

    registry: Registry
    supervision: Supervision
    line: llm.Line
    paging: trio.Lock = field(factory=trio.Lock)  # a long page takes 5 ms: other tasks run between two of them

    async def kill(self, call: Call, request: calls.Kill) -> calls.Killed:
        agent = self.registry.find(request.id, request.name)
        call.announces = agent.id != call.caller.id  # an agent that kills itself affects no other caller
        await call.require(Right("kill", agent=agent.id), about=agent.name)
        if agent.over.is_set():
            raise NotFound(f"{agent.name} has ended already: {agent.end.reason if agent.end else 'it never started'}")
        await self.supervision.kill(agent, request.grace)
        return calls.Killed(killed=True, agent_id=agent.id)

    async def list_agents(self, caller: Caller, request: calls.List) -> bytes:
        caller.check(Right("list"))
        now = trio.current_time()

        def tells(agent: Agent) -> bool:  # the exit reason may contain host paths
            return self.registry.is_own(caller, agent.id)

        places, nowhere = self.line.queue_states(), QueueState()
        agents = [agent for agent in self.registry if request.all or not agent.over.is_set()]
        pieces = []
        for at in range(0, len(agents), BATCH):
            batch = agents[at : at + BATCH]
            told = [
                info(agent, now, tells(agent), places.get(queue_names(agent.queue_path), nowhere)) for agent in batch
            ]
            pieces.append(codec.encode(told)[1:-1])
            await trio.lowlevel.checkpoint()
        return b"[" + b",".join(pieces) + b"]"

    async def wait(self, call: Call, request: calls.Wait) -> calls.Exited:
        agent = self.registry.find(request.id, request.name)
        await call.require(Right("wait", agent=agent.id))
        with trio.move_on_after(math.inf if request.timeout is None else request.timeout):
            await agent.over.wait()
            end = agent.end
            if end is None:
                return calls.Exited(exit_code=None, signal=None, reason="it never started")
            return calls.Exited(exit_code=end.code, signal=end.signal, reason=end.reason)
        raise Timeout(f"{agent.name} is {agent.state} after {request.timeout:g} s")

    async def pause(self, call: Call, request: calls.Pause) -> calls.Paused:
        agent = self.registry.find(request.id, request.name)
        await call.require(Right("pause", agent=agent.id), about=agent.name)
        self.step(agent, State.RUNNING, AgentPaused, Sandbox.freeze)
        return calls.Paused(paused=True, agent_id=agent.id)

    async def resume(self, call: Call, request: calls.Resume) -> calls.Resumed:
        agent = self.registry.find(request.id, request.name)
        await call.require(Right("resume", agent=agent.id), about=agent.name)
        self.step(agent, State.PAUSED, AgentResumed, Sandbox.thaw)
        return calls.Resumed(resumed=True, agent_id=agent.id)

    def step(self, agent: Agent, here: State, event: type[AgentEvent], act: Callable[[Sandbox], None]) -> None:
        """Apply ``act`` to an agent's sandbox and change its state; no effect if it is in that state already."""
        if agent.state is NEXT[here][event]:
            return
        if agent.state is not here or agent.program is None:
            raise BadRequest(f"{agent.name} is {agent.state}: expected an agent that is {here}")
        act(agent.program)
        self.registry.change(agent, event(agent.id, agent.name))

    def tree(self, caller: Caller, request: calls.Tree) -> calls.TreeReply:
        caller.check(Right("tree"))
        return calls.TreeReply(tree=picture(self.supervision.root, self.registry))

    async def logs(self, call: Call, request: calls.Logs) -> calls.LogsReply:
        agent = self.registry.find(request.id, request.name)
        await call.require(Right("logs", agent=agent.id))
        if not 0 <= request.tail <= MAX_TAIL:
            raise BadRequest(f"tail: expected 0 to {MAX_TAIL}, got {request.tail}")
        begin = max(0, agent.output.end - request.tail)
        if request.follow:
            call.require_stream("follow")
            return await follow(call, agent, begin)
        allowance = call.caller.allowance
        while True:
            await allowance.wait_for_bytes()  # a caller that doesn't read its replies gets no more of them
            async with self.paging:
                if allowance.has_bytes:
                    return page(*agent.output.since(begin))


def syscalls(registry: Registry, supervision: Supervision, spawner: Spawning, line: llm.Line) -> tuple[Syscall, ...]:
    known, to = Known(registry, supervision, line), partial(to_agent, registry)
    return (
        Syscall(Op.SPAWN, calls.Spawn, spawner.spawn, audit="intent", rights=spawner.rights),
        Syscall(Op.KILL, calls.Kill, known.kill, failure={"killed": False}, audit="intent", rights=to(Op.KILL)),
        Syscall(Op.LIST, calls.List, known.list_agents, in_order=True),
        Syscall(Op.WAIT, calls.Wait, known.wait, rights=to(Op.WAIT)),
        Syscall(Op.PAUSE, calls.Pause, known.pause, failure={"paused": False}, audit="outcome", rights=to(Op.PAUSE)),
        Syscall(
            Op.RESUME,
            calls.Resume,
            known.resume,
            failure={"resumed": False},
            audit="outcome",
            rights=to(Op.RESUME),
        ),
        Syscall(Op.TREE, calls.Tree, known.tree),
        Syscall(Op.LOGS, calls.Logs, known.logs, rights=to(Op.LOGS)),
    )


def info(agent: Agent, now: float, whole: bool, place: QueueState) -> calls.AgentInfo:
    """``whole``: include how it ended. ``place`` is its place in the model's queue."""
    pid = agent.pid
    return calls.AgentInfo(
        id=agent.id,
        name=agent.name,
        pid=pid,
        state=str(agent.state),
        parent=agent.parent.id if agent.parent is not None else None,
        supervisor="/".join(agent.path),
        restarts=max(0, agent.lives - 1),
        uptime_ms=int((now - agent.since) * 1000) if pid is not None else 0,
        running=agent.alive and pid is not None,
        isolation=agent.spec.isolation,
        missing=agent.lacking,
        llm=in_line(place),
        end=agent.end.reason if agent.end is not None and whole else None,
    )


def in_line(place: QueueState) -> calls.InLine:
    return calls.InLine(waiting=place.waiting, in_flight=place.in_flight, position=place.position, paused=place.paused)


async def follow(call: Call, agent: Agent, begin: int) -> calls.LogsReply:
    """Stream lines until the agent has ended for good; the reply itself carries the last ones."""
    while True:
        lines, missed = agent.output.since(begin)
        begin = agent.output.end
        if agent.over.is_set():
            return page(lines, missed)
        if lines:
            await call.send(await encode_in_turns(page(lines, missed)))
        await first(agent.over.wait, partial(agent.output.wait_beyond, begin))


def page(lines: Sequence[Line], missed: int) -> calls.LogsReply:
    shown = [calls.Line(at=line.at, stream=line.stream, text=line.text) for line in lines]
    return calls.LogsReply(lines=shown, missed=missed)
