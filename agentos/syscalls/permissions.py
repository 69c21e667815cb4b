"""Handlers of GET_PERMS, SET_PERMS and EXPLAIN."""

from collections.abc import Mapping, Sequence
from typing import Any

import trio
from attrs import field, frozen

from agentos.agents.registry import Agent, Registry
from agentos.kernel import connection_calls
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.prepared import denial
from agentos.kernel.table import Syscall
from agentos.permissions.authorizer import NOT_HELD
from agentos.permissions.levels import LEVELS
from agentos.permissions.rule import PermissionSet, describe_right, shorten, strictness
from agentos.permissions.set_files import describe_set, suggest_name
from agentos_sdk import codec
from agentos_sdk.calls import permissions as calls
from agentos_sdk.errors import BadRequest, PermissionDenied, UnknownCall
from agentos_sdk.opcodes import Op
from agentos_sdk.strict import shown as quoted

from .rights import Rights


@frozen
class Permissions:
    """Answers them. ``served`` are all calls of this kernel by opcode."""

    registry: Registry
    callers: Rights
    served: dict[Op, Syscall]
    _reading: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def get(self, call: Call, request: calls.GetPerms) -> calls.PermsReply:
        target = self._target(call.caller, request.agent_id)
        await call.require(*await self.to_get(call.caller, request))
        own, *above = self.callers.authorizer.permissions_of(target).sets()
        bounds = [{"name": each.name, **describe_set(each)} for each in above]
        return calls.PermsReply(permissions={**describe_set(own), "bounded_by": bounds})

    async def set(self, call: Call, request: calls.SetPerms) -> calls.PermsSet:
        caller, rights = call.caller, await self.to_set(call.caller, request)
        for right in rights:
            caller.check(right)  # before its contents are parsed
        given = await self._read(caller, request)
        if self._target(caller, request.agent_id) == caller.id:
            return await self._set_own(call, rights, request, given)
        agent = self._agent(self._target(caller, request.agent_id))
        await call.require(*rights, about=f"{agent.name}: {told(given)}")
        await self._check(caller, request, given)
        self.callers.give(agent, given, caller)
        return calls.PermsSet(agent_id=agent.id)

    async def _set_own(
        self, call: Call, rights: Sequence[Right], request: calls.SetPerms, given: PermissionSet
    ) -> calls.PermsSet:
        """Narrow the caller's own rights. A set that changes nothing isn't announced in the audit log."""
        caller, about = call.caller, f"{call.caller.name}: {told(given)}"
        try:
            await self._check(caller, request, given)
        except PermissionDenied as error:
            decision = Decision("deny", NOT_HELD, str(error))
            caller.audit.note(caller.entry("SET_PERMS", about, decision, "outcome", error.code))
            raise
        call.announces = not self.callers.authorizer.is_held_already(given, caller.id)
        await call.require(*rights, about=about)
        self.callers.authorizer.check_layer_left(given, caller.id)  # the audit write took a while
        self.callers.narrow(caller, given)
        return calls.PermsSet(agent_id=caller.id)

    async def _read(self, caller: Caller, request: calls.SetPerms) -> PermissionSet:
        wanted = request.level if request.level is not None else request.permissions
        return await self.callers.read(wanted, field_of(request), "SET_PERMS", caller)

    async def _check(self, caller: Caller, request: calls.SetPerms, given: PermissionSet) -> None:
        if self._target(caller, request.agent_id) == caller.id:
            await self.callers.check_narrower(caller, given, field_of(request))
        else:
            self.callers.authorizer.check_not_wider(given, caller.id, field_of(request))

    async def explain(self, call: Call, request: calls.Explain) -> calls.Explained:
        agent, op = self._named(request.agent), op_of(request.call)
        await call.require(*await self.to_explain(call.caller, request), about=f"{agent.name}: {op.name}")
        right, decision = await self._decided(call.caller, agent.caller, op, request.args)
        reason = decision.reason or f"{describe_right(right)}: allowed by the rule {decision.rule}"
        return calls.Explained(decision=decision.effect, rule=decision.rule, reason=reason)

    async def to_get(self, caller: Caller, request: calls.GetPerms) -> Sequence[Right]:
        return [Right("get_perms", agent=self._target(caller, request.agent_id))]

    async def to_set(self, caller: Caller, request: calls.SetPerms) -> Sequence[Right]:
        if (request.level is None) == (request.permissions is None):
            raise BadRequest("permissions: expected exactly one of level and permissions")
        return [Right("set_perms", agent=self._target(caller, request.agent_id))]

    async def to_set_this(self, caller: Caller, request: calls.SetPerms) -> Sequence[Right]:
        """The same rights. If the caller holds them, a set that it can't give is refused here."""
        rights = await self.to_set(caller, request)
        if all(caller.authorizer.decide(caller, right).effect == "allow" for right in rights):
            await self._check(caller, request, await self._read(caller, request))
        return rights

    async def to_explain(self, caller: Caller, request: calls.Explain) -> Sequence[Right]:
        return [Right("explain", agent=self._named(request.agent).id)]

    async def _decided(self, asker: Caller, caller: Caller, op: Op, args: Mapping[str, Any]) -> tuple[Right, Decision]:
        """The decision about a call by ``caller``, the strictest of several. Nothing is done."""
        authorizer, syscall = self.callers.authorizer, self.served.get(op)
        if syscall is None and op not in connection_calls.OPS:
            raise UnknownCall(f"this kernel has no call {op.name}")
        decided = [(Right(op.name.lower()), authorizer.decide_call(caller.id, op))]
        if decided[0][1].effect != "deny" and syscall is not None and (syscall.prepare or syscall.rights):
            request = await self._parse(asker, syscall, args)
            try:
                rights = await syscall.required_rights(caller, request)
            except PermissionDenied as error:
                return decided[0][0], denial(error)
            decided = [(right, authorizer.decide(caller, right)) for right in rights]
        return min(decided, key=lambda one: strictness(one[1]))

    async def _parse(self, asker: Caller, syscall: Syscall, args: Mapping[str, Any]) -> object:
        """The request that the call's ``prepare`` would get."""
        async with asker.turn:
            body = await trio.to_thread.run_sync(codec.encode, {**syscall.omittable, **args}, limiter=self._reading)
        try:
            return await syscall.read(asker, body, asker.table.reader)
        except BadRequest as error:
            raise BadRequest(f"args: {error}") from None

    def _target(self, caller: Caller, number: int | None) -> int:
        """The caller's id, or that of an agent."""
        return caller.id if number is None or number == caller.id else self._agent(number).id

    def _agent(self, number: int) -> Agent:
        return self.registry.find(number, None)

    def _named(self, agent: str | int) -> Agent:
        return self._agent(agent) if isinstance(agent, int) else self.registry.find(None, agent)


def syscalls(registry: Registry, callers: Rights, others: Sequence[Syscall]) -> tuple[Syscall, ...]:
    """``others`` are all system calls except these three."""
    permissions = Permissions(registry, callers, {syscall.op: syscall for syscall in others})
    made = (
        Syscall(Op.GET_PERMS, calls.GetPerms, permissions.get, rights=permissions.to_get),
        Syscall(Op.SET_PERMS, calls.SetPerms, permissions.set, audit="intent", rights=permissions.to_set_this),
        Syscall(Op.EXPLAIN, calls.Explain, permissions.explain, audit="outcome", rights=permissions.to_explain),
    )
    permissions.served.update({syscall.op: syscall for syscall in made})
    return made


def field_of(request: calls.SetPerms) -> str:
    return "level" if request.level is not None else "permissions"


def op_of(name: str) -> Op:
    """The opcode of that name, in lower or upper case."""
    try:
        return Op[name.upper()]
    except KeyError:
        raise BadRequest(f"call: no call is named {quoted(name)}{suggest_name(name.upper(), Op.__members__)}") from None


def told(given: PermissionSet) -> str:
    """A permission set in the format of the audit log."""
    if given.level is not None and LEVELS[given.level] is given:
        return given.level
    return f"{given.name} {shorten(codec.encode(describe_set(given)).decode(), 2000)}"
