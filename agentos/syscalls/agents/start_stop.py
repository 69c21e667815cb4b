"""Handlers of START, STOP and RESTART."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from agentos.agents.registry import Agent, Registry
from agentos.agents.tree.container import Path
from agentos.agents.tree.start_stop import Target
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos_sdk.calls import agents as calls
from agentos_sdk.errors import BadRequest, CallError
from agentos_sdk.opcodes import Op

MAX_NAMES = 1000  # in one request
MAX_DIGITS = 19  # of an agent's id as a name; Python refuses to read a number of thousands of digits

Request = calls.Start | calls.Stop | calls.Restart


class StartStopCalls(Struct, frozen=True):
    """Handlers of the calls that start and stop agents and groups by name."""

    registry: Registry
    supervision: Supervision

    async def prepare_start(self, caller: Caller, request: calls.Start) -> Prepared:
        targets = self.find_targets(request)

        async def act(call: Call) -> calls.Changed:
            operations = self.supervision.start_stop
            start_group = partial(operations.start_group, now=request.now)
            await for_each(targets, start_group, partial(operations.start_agent, now=request.now))
            return describe(targets)

        return prepare(request, "start", targets, act, find_spawned(targets))

    async def prepare_stop(self, caller: Caller, request: calls.Stop) -> Prepared:
        targets = self.find_targets(request)

        async def act(call: Call) -> calls.Changed:
            agents, operations = list_agents(targets), self.supervision.start_stop
            await operations.stop(agents, caller.shown_name)
            if request.keep:
                await operations.keep_stopped(agents, caller.shown_name)
            return describe(targets)

        return prepare(request, "stop", targets, act, find_spawned(targets))

    async def prepare_restart(self, caller: Caller, request: calls.Restart) -> Prepared:
        targets = self.find_targets(request)
        error = None
        for agent in list_agents(targets):
            if agent.id == caller.id or self.registry.descends(caller.id, agent.id):
                error = BadRequest(f"{agent.name}: an agent can't restart itself or an agent above it; it can end")

        async def act(call: Call) -> calls.Changed:
            operations = self.supervision.start_stop
            await for_each(targets, operations.restart_group, operations.restart_agent)
            return describe(targets)

        return prepare(request, "restart", targets, act, error)

    def find_targets(self, request: Request) -> Sequence[Target]:
        """The agents and groups that a request names, each once. Raises ``BadRequest`` or ``NotFound``."""
        if (request.name is None) == (request.names is None):
            raise BadRequest("name: expected exactly one of name and names")
        names = [request.name] if request.name is not None else request.names or ()
        if not 1 <= len(names) <= MAX_NAMES:
            raise BadRequest(f"names: expected 1 to {MAX_NAMES} names, got {len(names)}")
        targets = [self.find_target(name) for name in names]
        return list({target.group or target.agents[0].id: target for target in targets}.values())

    def find_target(self, name: str) -> Target:
        if name.isascii() and name.isdecimal() and len(name) <= MAX_DIGITS:
            return Target([self.registry.find(int(name), None)])
        return self.supervision.start_stop.find(name)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.START, calls.Start, prepare=self.prepare_start, audit="intent"),
            Syscall(Op.STOP, calls.Stop, prepare=self.prepare_stop, audit="intent"),
            Syscall(Op.RESTART, calls.Restart, prepare=self.prepare_restart, audit="intent"),
        )


def list_agents(targets: Sequence[Target]) -> Sequence[Agent]:
    return [agent for target in targets for agent in target.agents]


async def for_each(
    targets: Sequence[Target],
    change_group: Callable[[Path], Awaitable[None]],
    change_agent: Callable[[Agent], Awaitable[None]],
) -> None:
    """Start or restart what the names of a request stand for, one after the other."""
    for target in targets:
        if target.group is not None:
            await change_group(target.group)
        else:
            await change_agent(target.agents[0])


def find_spawned(targets: Sequence[Target]) -> CallError | None:
    """The error of a request for an agent that was spawned: it ends for good."""
    for agent in list_agents(targets):
        if not agent.declared:
            return BadRequest(f"{agent.name}: expected an agent of the configuration file; this one was spawned")
    return None


def prepare(
    request: Request, action: str, targets: Sequence[Target], act: Callable[[Call], object], error: CallError | None
) -> Prepared:
    rights = [Right(action, agent=agent.id) for agent in list_agents(targets)] or [Right(action)]
    return Prepared(rights, act, about=request.name or ", ".join(request.names or ()), error=error)


def describe(targets: Sequence[Target]) -> calls.Changed:
    agents = {agent.name: agent for agent in list_agents(targets)}
    return calls.Changed(agents=[calls.AgentState(name=name, state=str(agents[name].state)) for name in agents])
