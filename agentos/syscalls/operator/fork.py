"""Handler of FORK: new agents that go on from a moment of another one's overlay."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import frozen
from msgspec.structs import replace

from agentos.agents.life.still import hold_still
from agentos.agents.registry import Agent, Registry, StartError
from agentos.agents.spec import AgentSpec, check_name
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.services.snapshots.snapshots import Snapshots
from agentos.services.snapshots.store import Snapshot
from agentos_sdk.calls.operator import snapshots as calls
from agentos_sdk.errors import AlreadyExists, BadRequest
from agentos_sdk.opcodes import Op

from .overlays import explaining, require_operator
from .snapshots import account_of

OPERATORS = "only the operator forks agents"
START_FAILED = 0.0  # seconds of grace for the forks that had come up when another one didn't


@frozen
class Forking:
    """Answers it."""

    registry: Registry
    snapshots: Snapshots
    supervision: Supervision

    @asynccontextmanager
    async def prepare(self, caller: Caller, request: calls.Fork) -> AsyncIterator[Prepared]:
        for name in request.names:
            check_name(name, "names")
        if request.names and len(set(request.names)) != request.count:
            raise BadRequest(f"names: expected {request.count} different names, as count says, or none")
        original = self.registry.find(None, request.name)
        error = require_operator(caller, OPERATORS)
        if original.parent is not None or original.guest is not None:
            error = error or BadRequest(
                f"name: {original.name} was spawned by an agent or a guest, so it has no overlay"
            )

        async def act(call: Call) -> calls.Forked:
            with explaining(caller):
                async with self._moment(original, request.snapshot) as (snapshot, moment):
                    names = request.names or await self._choose_names(original, request.count)
                    agents = await self._start_all(caller, original.spec, snapshot, moment, names)
            call.remark = f"{moment}: {', '.join(names)}"
            return calls.Forked(agents=[calls.ForkedAgent(id=one.id, name=one.name) for one in agents])

        yield Prepared((Right("fork", agent=original.id),), act, about=request.name, error=error)

    @asynccontextmanager
    async def _moment(self, original: Agent, wanted: str | None) -> AsyncIterator[tuple[Snapshot, str]]:
        """The snapshot to go on from, and how it is shown; without one it is taken now, for this call alone."""
        if wanted is not None:
            found = await self.snapshots.find(original.name, wanted)
            await self.snapshots.check(found, original.spec.workspace)
            yield found, found.address
            return
        taken = await self.snapshots.take(
            original.name, account_of(original, original.name), "", partial(hold_still, original)
        )
        try:
            await self.snapshots.check(taken, original.spec.workspace)
            yield taken, original.name
        finally:
            with trio.CancelScope(shield=True):
                await self.snapshots.remove(taken)

    async def _choose_names(self, original: Agent, count: int) -> Sequence[str]:
        """The first names ``NAME-1``, ``NAME-2`` that no agent has or has left something under."""
        found: list[str] = []
        for number in itertools.count(1):
            name = f"{original.name}-{number}"
            if self.registry.find_by_name(name) is None and not await self.snapshots.is_used(name, name):
                check_name(name, "names")
                found.append(name)
            if len(found) == count:
                return found
        raise AssertionError("numbers don't end")

    async def _start_all(
        self, caller: Caller, spec: AgentSpec, snapshot: Snapshot, moment: str, names: Sequence[str]
    ) -> Sequence[Agent]:
        """Start them one after the other; if one doesn't come up, none is left."""
        started: list[Agent] = []
        try:
            for name in names:
                started.append(await self._start(caller, describe_fork(spec, name), snapshot, moment))
        except BaseException:
            with trio.CancelScope(shield=True):
                for agent in started:
                    await self.supervision.kill(agent, START_FAILED, "FORK")
                    await self.snapshots.end_fork(agent.name, agent.name)
            raise
        return started

    async def _start(self, caller: Caller, spec: AgentSpec, snapshot: Snapshot, moment: str) -> Agent:
        if self.registry.is_taken(spec.name):
            raise AlreadyExists(f"names: {spec.name!r} is taken")
        await self.snapshots.begin_fork(snapshot, spec.name, spec.name, moment)
        try:
            agent = await self.supervision.spawn(spec, caller, None)
        except StartError as error:
            with trio.CancelScope(shield=True):
                await self.snapshots.end_fork(spec.name, spec.name)
            raise error.error(f"{spec.name} did not start: {error}", stderr=error.stderr) from None
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.snapshots.end_fork(spec.name, spec.name)
            raise
        agent.forked_from = moment
        return agent


def describe_fork(spec: AgentSpec, name: str) -> AgentSpec:
    """The spec of a fork, without what only a declared agent has: it starts now, and its mailbox ends with it."""
    return replace(
        spec,
        name=name,
        mailbox="memory",
        schedule=None,
        start=None,
        idle_stop=None,
        required=False,
        after=(),
        significant=False,
        on_give_up="fail",
    )


def syscalls(registry: Registry, snapshots: Snapshots, supervision: Supervision) -> tuple[Syscall, ...]:
    return (Syscall(Op.FORK, calls.Fork, prepare=Forking(registry, snapshots, supervision).prepare, audit="intent"),)
