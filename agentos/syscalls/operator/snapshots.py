"""Handlers of SNAPSHOT, SNAPSHOTS and ROLLBACK: moments of an agent's overlay."""

from functools import partial

from attrs import frozen

from agentos.agents.life.still import hold_still
from agentos.agents.registry import Agent, Registry
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.services.events import SnapshotMade
from agentos.services.snapshots.overlays import NoOverlay
from agentos.services.snapshots.records import Snapshot
from agentos.services.snapshots.snapshots import START, Snapshots, check_label
from agentos_sdk.calls.operator import overlays
from agentos_sdk.calls.operator import snapshots as calls
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op

from .overlays import Paces, explaining, find_overlay, require_descendant


@frozen
class SnapshotCalls:
    """Answers them."""

    registry: Registry
    snapshots: Snapshots
    supervision: Supervision
    paces: Paces

    async def prepare_snapshot(self, caller: Caller, request: calls.Snapshot) -> Prepared:
        label = request.label
        if label is not None and (mistake := check_label(label)) is not None:
            raise BadRequest(mistake)
        agent = self.registry.find_by_name(request.name)
        key, right, error = find_overlay(self.registry, caller, request.name, "snapshot")

        async def act(call: Call) -> calls.SnapshotTaken:
            by_agent, still = caller.kind != "operator", partial(hold_still, agent)
            async with self.paces.take_turn(caller):
                with explaining(caller):
                    taken = await self.snapshots.take(key, account_of(agent, key), label or "", still, by_agent)
            call.remark = taken.address
            number = agent.id if agent is not None else 0
            self.registry.publish(SnapshotMade(number, request.name, taken.id, label, taken.bytes))
            return calls.SnapshotTaken(snapshot=taken.id, bytes=taken.bytes, paths=taken.paths)

        return Prepared((right,), act, about=request.name, error=error)

    async def prepare_snapshots(self, caller: Caller, request: calls.Snapshots) -> Prepared:
        key, right = None, Right("snapshots")
        if request.name is not None:
            key, right, _ = find_overlay(self.registry, caller, request.name, "snapshots")

        async def act(call: Call) -> calls.SnapshotsReply:
            with explaining(caller):
                if request.remove is not None:
                    await self._remove(call, key, request.remove)
                found = await self.snapshots.list(key)
            if not found and request.remove is None and request.name is not None:
                self.registry.find(None, request.name)  # raises if there is none
            return calls.SnapshotsReply(snapshots=[describe(one) for one in found])

        return Prepared((right,), act, about=request.name or "")

    async def _remove(self, call: Call, key: str | None, moment: str) -> None:
        if key is not None:
            found = await self.snapshots.find(key, moment)
        else:
            every = await self.snapshots.list()
            by_id = next((one for one in every if one.id == moment), None)
            if by_id is None:
                raise NoOverlay(f"remove: no snapshot has the id {moment}; a label needs its agent's name")
            found = by_id
        await self.snapshots.remove(found)
        call.remark = f"removed {found.address}"

    async def prepare_rollback(self, caller: Caller, request: overlays.Rollback) -> Prepared:
        key, right, error = find_overlay(self.registry, caller, request.name, "rollback")
        agent = self.registry.find_by_name(request.name)
        if agent is not None and (agent.id == caller.id or self.registry.descends(caller.id, agent.id)):
            error = BadRequest(f"{agent.name}: an agent can't roll back itself or an agent above it")
        error = error or require_descendant(self.registry, caller, agent)

        async def act(call: Call) -> overlays.RolledBack:
            def is_used() -> bool:
                return agent is not None and not agent.over.is_set()

            async with self.paces.take_turn(caller):
                with explaining(caller):
                    if request.snapshot == START:
                        runs = await self.snapshots.overlays.discard(key, is_used)
                    else:
                        found = await self.snapshots.find(key, request.snapshot)
                        runs = await self.snapshots.roll_back(found, is_used)
            call.remark = f"{key}@{request.snapshot}"
            if agent is not None and runs:
                await self.supervision.start_stop.restart_agent(agent)
            return overlays.RolledBack(restarted=runs)

        return Prepared((right,), act, about=request.name, error=error)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.SNAPSHOT, calls.Snapshot, prepare=self.prepare_snapshot, audit="intent"),
            Syscall(Op.SNAPSHOTS, calls.Snapshots, prepare=self.prepare_snapshots, audit="outcome"),
            Syscall(Op.ROLLBACK, overlays.Rollback, prepare=self.prepare_rollback, audit="intent"),
        )


def account_of(agent: Agent | None, key: str) -> str:
    """The account of an agent's private keys; of one of the past it is told by its lineage."""
    return agent.queue_path[-1].name if agent is not None else key.replace("+", "/")


def describe(one: Snapshot) -> calls.SnapshotInfo:
    return calls.SnapshotInfo(
        snapshot=one.id,
        name=one.name,
        label=one.label or None,
        at=one.at,
        bytes=one.bytes,
        parent=one.parent or None,
    )
