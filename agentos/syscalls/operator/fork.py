"""Handler of FORK: new agents that go on from a moment of another one's overlay.

The forks of an agent that another agent spawned are its siblings: they count as their parent's children, use its
budget, and hold no right that the agent itself, and so any agent above it, doesn't hold.
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import frozen
from msgspec.structs import replace

from agentos.agents.inherit import cut
from agentos.agents.jail.jail import lineage
from agentos.agents.life.still import hold_still
from agentos.agents.registry import Agent, StartError
from agentos.agents.spec import AgentSpec, check_name
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.services.snapshots.records import Snapshot
from agentos.services.snapshots.snapshots import Snapshots
from agentos.syscalls.agents.spawn import Spawning
from agentos_sdk.calls.operator import snapshots as calls
from agentos_sdk.errors import AlreadyExists, BadRequest, NotFound
from agentos_sdk.opcodes import Op

from .overlays import Paces, explaining, require_descendant
from .snapshots import account_of

START_FAILED = 0.0  # seconds of grace for the forks that had come up when another one didn't


@frozen
class Forking:
    """Answers it."""

    spawning: Spawning
    snapshots: Snapshots
    paces: Paces

    async def prepare(self, caller: Caller, request: calls.Fork) -> Prepared:
        for name in request.names:
            check_name(name, "names")
        if request.names and len(set(request.names)) != request.count:
            raise BadRequest(f"names: expected {request.count} different names, as count says, or none")
        original = self.spawning.callers.registry.find(None, request.name)
        error = require_descendant(self.spawning.callers.registry, caller, original)
        if original.guest is not None:
            error = error or BadRequest(f"name: {original.name} was spawned by a guest, so it has no overlay")
        if original.parent is not None and original.over.is_set():
            error = error or NotFound(f"name: {original.name} has ended, and with it the rights that forks would have")

        async def act(call: Call) -> calls.Forked:
            async with self.paces.take_turn(caller):
                with explaining(caller):
                    async with self._moment(original, request.snapshot, caller) as (snapshot, moment):
                        names = request.names or await self._choose_names(original, request.count)
                        agents = await self._start_all(caller, original, snapshot, moment, names)
            call.remark = f"{moment}: {', '.join(names)}"
            return calls.Forked(agents=[calls.ForkedAgent(id=one.id, name=one.name) for one in agents])

        return Prepared((Right("fork", agent=original.id),), act, about=request.name, error=error)

    @asynccontextmanager
    async def _moment(self, original: Agent, wanted: str | None, caller: Caller) -> AsyncIterator[tuple[Snapshot, str]]:
        """The snapshot to go on from, and how it is shown; without one it is taken now, for this call alone."""
        key = lineage(original)
        if wanted is not None:
            found = await self.snapshots.find(key, wanted)
            await self.snapshots.check(found, original.spec.workspace)
            yield found, found.address
            return
        still, by_agent = partial(hold_still, original), caller.kind != "operator"
        taken = await self.snapshots.take(key, account_of(original, key), "", still, by_agent)
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
            if self.spawning.callers.registry.find_by_name(name) is None and not await self.snapshots.is_used(
                *keys_of(original, name)
            ):
                check_name(name, "names")
                found.append(name)
            if len(found) == count:
                return found
        raise AssertionError("numbers don't end")

    async def _start_all(
        self, caller: Caller, original: Agent, snapshot: Snapshot, moment: str, names: Sequence[str]
    ) -> Sequence[Agent]:
        """Start them one after the other; if one doesn't come up, none is left."""
        started: list[Agent] = []
        try:
            for name in names:
                started.append(await self._start(caller, original, name, snapshot, moment))
        except BaseException:
            with trio.CancelScope(shield=True):
                for agent in started:
                    await self.spawning.supervision.kill(agent, START_FAILED, "FORK")
                    await self.snapshots.end_fork(*keys_of(original, agent.name))
            raise
        return started

    async def _start(self, caller: Caller, original: Agent, name: str, snapshot: Snapshot, moment: str) -> Agent:
        if self.spawning.is_taken(name):
            raise AlreadyExists(f"names: {name!r} is taken")
        keys = keys_of(original, name)
        self.spawning.charge(caller)
        await self.snapshots.begin_fork(snapshot, *keys, moment)
        try:
            agent = await self._spawn(caller, original, original.spec.as_spawned(name))
        except StartError as error:
            with trio.CancelScope(shield=True):
                await self.snapshots.end_fork(*keys)
            raise error.error(f"{name} did not start: {error}", stderr=error.stderr) from None
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.snapshots.end_fork(*keys)
            raise
        agent.forked_from = moment
        return agent

    async def _spawn(self, caller: Caller, original: Agent, spec: AgentSpec) -> Agent:
        parent = original.parent
        self.spawning.check_child_count(caller, parent)  # nothing is awaited until the agent counts
        if parent is None:
            return await self.spawning.supervision.spawn(spec, caller, None)
        if original.over.is_set():
            raise NotFound(f"name: {original.name} has ended meanwhile")
        bounds = self.spawning.callers.limits(caller)
        spec = replace(spec, limits=cut(spec.limits, bounds))
        return await self.spawning.supervision.spawn(spec, parent.caller, parent, rights_of=original.caller)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (Syscall(Op.FORK, calls.Fork, prepare=self.prepare, audit="intent"),)


def keys_of(original: Agent, name: str) -> tuple[str, str]:
    """The keys of a fork called ``name``: of its overlay, and of the account of its private state."""
    if original.parent is None:
        return name, name
    return f"{lineage(original.parent)}+{name}", f"{original.parent.queue_path[-1].name}/{name}"
