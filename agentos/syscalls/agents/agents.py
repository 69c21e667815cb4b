"""Handlers of SPAWN, KILL, LIST, WAIT, PAUSE, RESUME and TREE."""

import math
from collections.abc import Callable

import trio
from msgspec import Struct

from agentos.access.callers import Callers
from agentos.access.event_sight import find_end_sight
from agentos.agents.jail.usage import UsageReader
from agentos.agents.life.lifecycle import NEXT, State
from agentos.agents.registry import Agent
from agentos.agents.tree.tree import describe_tree
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.llm.queue.states import QueueState
from agentos.llm.settings import queue_names
from agentos.sandbox.sandbox import Sandbox
from agentos.services.events import AgentEvent, AgentPaused, AgentResumed
from agentos_sdk.calls import agents as calls
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, NotFound, Timeout
from agentos_sdk.opcodes import Op
from agentos_sdk.values import InLine, ResourceUsage

from .spawn import Spawning

BATCH = 50  # agents that LIST describes between two checkpoints: 1 ms


class AgentCalls(Struct, frozen=True):
    """Handlers of the calls about agents."""

    spawning: Spawning
    callers: Callers
    usage: UsageReader

    async def prepare_kill(self, caller: Caller, request: calls.Kill) -> Prepared:
        agent = self.callers.registry.find(request.id, request.name)

        async def act(call: Call) -> calls.Killed:
            if agent.over.is_set() and not agent.comes_back:
                why = agent.end.reason if agent.end else "it never started"
                raise NotFound(f"{agent.name} has ended already: {why}")
            await self.spawning.supervision.kill(agent, request.grace, caller.shown_name)
            return calls.Killed(killed=True, agent_id=agent.id)

        right, announce = Right("kill", agent=agent.id), agent.id != caller.id  # killing itself affects no other caller
        return Prepared((right,), act, about=agent.name, announce=announce)

    def prepare_list(self, caller: Caller, request: calls.List) -> Prepared:
        async def act(caller: Caller) -> bytes:
            usage = await self.usage.read()
            now = trio.current_time()
            states, nothing = self.callers.line.queue_states(), QueueState()
            sees_end = find_end_sight(caller, self.callers.registry, self.callers.authorizer)
            agents = [agent for agent in self.callers.registry if request.all or agent.comes_back]
            pieces = []
            for at in range(0, len(agents), BATCH):
                infos = []
                for agent in agents[at : at + BATCH]:
                    whole = sees_end(agent)  # the exit reason may contain host paths
                    place = states.get(queue_names(agent.queue_path), nothing).place
                    refusing = self.callers.line.refusing_budgets(agent.queue_path)
                    renews_at = max((budget.renews_at for budget in refusing), default=None)
                    infos.append(
                        describe_agent(agent, now, whole, place, usage.get(agent.id, ResourceUsage()), renews_at)
                    )
                pieces.append(codec.encode(infos)[1:-1])
                await trio.lowlevel.checkpoint()
            return b"[" + b",".join(pieces) + b"]"

        return Prepared((Right("list"),), act)

    async def prepare_wait(self, caller: Caller, request: calls.Wait) -> Prepared:
        agent = self.callers.registry.find(request.id, request.name)

        async def act(call: Call) -> calls.Exited:
            with trio.move_on_after(math.inf if request.timeout is None else request.timeout):
                await agent.over.wait()
                end = agent.end
                if end is None:
                    return calls.Exited(exit_code=None, signal=None, reason="it never started")
                return calls.Exited(exit_code=end.exit_code, signal=end.signal, reason=end.reason)
            raise Timeout(f"{agent.name} is {agent.state} after {request.timeout:g} s")

        return Prepared((Right("wait", agent=agent.id),), act)

    async def prepare_pause(self, caller: Caller, request: calls.Pause) -> Prepared:
        agent = self.callers.registry.find(request.id, request.name)

        async def act(call: Call) -> calls.Paused:
            self.change_state(agent, State.RUNNING, AgentPaused, Sandbox.freeze)
            return calls.Paused(paused=True, agent_id=agent.id)

        return Prepared((Right("pause", agent=agent.id),), act, about=agent.name)

    async def prepare_resume(self, caller: Caller, request: calls.Resume) -> Prepared:
        agent = self.callers.registry.find(request.id, request.name)

        async def act(call: Call) -> calls.Resumed:
            self.change_state(agent, State.PAUSED, AgentResumed, Sandbox.thaw)
            return calls.Resumed(resumed=True, agent_id=agent.id)

        return Prepared((Right("resume", agent=agent.id),), act, about=agent.name)

    def change_state(self, agent: Agent, here: State, event: type[AgentEvent], act: Callable[[Sandbox], None]) -> None:
        """Apply ``act`` to an agent's sandbox and change its state; no effect if it is in that state already."""
        if agent.state is NEXT[here][event]:
            return
        if agent.state is not here or agent.life.program is None:
            raise BadRequest(f"{agent.name} is {agent.state}: expected an agent that is {here}")
        act(agent.life.program)
        self.callers.registry.change(agent, event(agent.id, agent.name))

    def prepare_tree(self, caller: Caller, request: calls.Tree) -> Prepared:
        def act(caller: Caller) -> calls.TreeReply:
            return calls.TreeReply(tree=describe_tree(self.spawning.supervision.root, self.callers.registry))

        return Prepared((Right("tree"),), act)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.SPAWN, calls.Spawn, prepare=self.spawning.prepare, charge=self.spawning.charge, audit="intent"),
            Syscall(Op.KILL, calls.Kill, prepare=self.prepare_kill, failure={"killed": False}, audit="intent"),
            Syscall(Op.LIST, calls.List, prepare=self.prepare_list, in_order=True),
            Syscall(Op.WAIT, calls.Wait, prepare=self.prepare_wait),
            Syscall(Op.PAUSE, calls.Pause, prepare=self.prepare_pause, failure={"paused": False}, audit="outcome"),
            Syscall(Op.RESUME, calls.Resume, prepare=self.prepare_resume, failure={"resumed": False}, audit="outcome"),
            Syscall(Op.TREE, calls.Tree, prepare=self.prepare_tree),
        )


def describe_agent(
    agent: Agent, now: float, whole: bool, place: InLine, used: ResourceUsage, renews_at: float | None
) -> calls.AgentInfo:
    """``whole``: include how it ended. ``place`` is its place in the model's queue.

    ``renews_at`` is when budgets that have refused its questions renew.
    """
    pid = agent.pid
    return calls.AgentInfo(
        id=agent.id,
        name=agent.name,
        pid=pid,
        state=str(agent.state),
        parent=agent.parent.id if agent.parent is not None else None,
        supervisor="/".join(agent.path),
        restarts=agent.restarts,
        uptime_ms=int((now - agent.life.since) * 1000) if pid is not None else 0,
        running=agent.alive and pid is not None,
        isolation=agent.spec.isolation,
        missing=agent.life.lacking,
        llm=place,
        end=agent.end.reason if agent.end is not None and whole else None,
        stopped_by=agent.wish.stopped_by if agent.state is State.STOPPED else None,
        health=describe_failures(agent) if whole else None,
        memory_bytes=used.memory,
        peak_memory_bytes=used.peak,
        cpu_seconds=used.cpu_seconds,
        budget_renews_at=renews_at,
        kept=agent.state is State.STOPPED and agent.wish.kept,
        next_at=agent.due_at,
        wakes_on=agent.spec.wakes_on,
    )


def describe_failures(agent: Agent) -> str | None:
    """The last check of an agent whose health command fails or can't be run, for people; otherwise None."""
    health, check = agent.life.health, agent.spec.health
    if health.problem is None or check is None or not agent.alive:
        return None
    counted = f"{health.failures} of {check.failures} checks in a row failed" if health.failures else "not checked"
    return f"{counted}: {health.problem}"
