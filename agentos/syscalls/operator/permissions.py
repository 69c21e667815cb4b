"""Handlers of GET_PERMS, SET_PERMS and EXPLAIN."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from agentos.access.callers import Callers
from agentos.agents.registry import Agent
from agentos.kernel.asking import build_question_in_turn
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Question, Right
from agentos.kernel.prepared import Prepared, Refused, denial, refuse_early
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire import connection_calls
from agentos.permissions.address_judge import find_tunnel_refusal
from agentos.permissions.approvals.answers import Answer
from agentos.permissions.approvals.approvals import MAX_SHOWN_CHARS
from agentos.permissions.approvals.outcomes import show
from agentos.permissions.authorizer import NOT_HELD
from agentos.permissions.levels import LEVELS
from agentos.permissions.rule import PermissionSet, describe_right, shorten, strictness
from agentos.permissions.sets.files import describe_set
from agentos.permissions.shown_lines import split_lines, to_plain
from agentos.services.http.destination import Destination, is_address, parse_tunnel
from agentos_sdk.calls.operator import permissions as calls
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import quote
from agentos_sdk.errors import BadRequest, PermissionDenied, UnknownCall
from agentos_sdk.opcodes import Op


@frozen
class Permissions:
    """Answers them. ``served`` are all calls of this kernel by opcode."""

    callers: Callers
    served: dict[Op, Syscall]

    async def prepare_get(self, caller: Caller, request: calls.GetPerms) -> Prepared:
        target = self._target(caller, request.agent_id)

        async def act(call: Call) -> calls.PermsReply:
            own, *above = self.callers.authorizer.permissions_of(target).sets()
            bounds = [{"name": each.name, **describe_set(each)} for each in above]
            answers = self._answers(target, caller) if caller.kind == "operator" else ()
            return calls.PermsReply(permissions={**describe_set(own), "bounded_by": bounds}, answers=answers)

        return Prepared((Right("get_perms", agent=target),), act)

    async def prepare_set(self, caller: Caller, request: calls.SetPerms) -> Prepared:
        """Set the permissions of an agent, or narrow the caller's own. A set that changes nothing isn't announced."""
        if (request.level is None) == (request.permissions is None):
            raise BadRequest("permissions: expected exactly one of level and permissions")
        target, authorizer = self._target(caller, request.agent_id), self.callers.authorizer
        agent = self._agent(target) if target != caller.id else None
        right = Right("set_perms", agent=target)
        refuse_early(caller, right)  # before the set is parsed
        field, wanted = ("permissions", request.permissions) if request.level is None else ("level", request.level)
        given = await self.callers.sets.read(wanted, field, "SET_PERMS", caller)
        about = f"{agent.name if agent is not None else caller.name}: {summarize_set(given)}"
        try:
            if agent is None:
                await self.callers.check_narrower(caller, given, field)
            else:
                authorizer.check_not_wider(given, caller.id, field)
        except PermissionDenied as error:
            raise Refused(error, about, NOT_HELD) from None

        async def act(call: Call) -> calls.PermsSet:
            if agent is None:
                authorizer.check_layer_left(given, caller.id)  # the audit write took a while
                self.callers.narrow(caller, given)
            else:
                self.callers.give(agent, given, caller)
            return calls.PermsSet(agent_id=target)

        announce = agent is not None or not authorizer.is_held_already(given, caller.id)
        return Prepared((right,), act, about, announce)

    async def prepare_explain(self, caller: Caller, request: calls.Explain) -> Prepared:
        subject, op = self._find_subject(caller, request.agent), parse_op(request.call)

        async def act(call: Call) -> calls.Explained:
            right, decision, question = await self._decide(caller, subject, op, request.args)
            reason = decision.reason or f"{describe_right(right)}: allowed by the rule {decision.rule}"
            if (
                decision.effect == "allow"
                and isinstance(right.object, Destination)
                and not is_address(right.object.host)
            ):
                reason += "; the addresses of this name are judged when it connects"
            shown = show(question, self.callers.approvals.answers.name_of) if question is not None else ""
            if question is None or len(shown) > MAX_SHOWN_CHARS:
                return calls.Explained(decision=decision.effect, rule=decision.rule, reason=reason)
            return calls.Explained(
                decision=decision.effect,
                rule=decision.rule,
                reason=reason,
                shown=to_plain(shown),
                lines=split_lines(shown),
                digest=question.digest,
            )

        return Prepared((Right("explain", agent=subject.id),), act, about=f"{subject.name}: {op.name}")

    def _answers(self, target: int, operator: Caller) -> Sequence[calls.Answer]:
        """The remembered answers about an agent, or without one all."""
        agent = self.callers.registry.get(target) if target != operator.id else None
        subjects = (agent.id, self.callers.registry.lasting_name_of(agent)) if agent is not None else None
        return [describe_answer(one) for one in self.callers.approvals.list_answers(subjects)]

    async def _decide(
        self, asker: Caller, caller: Caller, op: Op, args: Mapping[str, Any]
    ) -> tuple[Right, Decision, Question | None]:
        """The decision about a call by ``caller``, the strictest of several. Nothing is done.

        Where a person must approve, also the question, for the operator: its text and its digest tell about files that
        another ``asker`` may not read.
        """
        authorizer, syscall = self.callers.authorizer, self.served.get(op)
        if op is Op.HTTP and args.get("method") == "CONNECT":  # no call, but what a filtered network's proxy judges
            destination = read_tunnel(args)
            tunnel = Right("http", destination)
            refusal, decision = find_tunnel_refusal(authorizer, caller, destination), authorizer.decide(caller, tunnel)
            if refusal is not None and decision.effect != "deny":
                decision = denial(refusal)
            return tunnel, decision, None
        if syscall is None and op not in connection_calls.OPS:
            raise UnknownCall(f"this kernel has no call {op.name}")
        right = Right(op.name.lower())
        decision = authorizer.decide_call(caller.id, op)
        if decision.effect == "deny" or syscall is None or syscall.prepare is None:
            return right, decision, None
        request, question = await self._parse(asker, syscall, args), None
        try:
            async with syscall.preview(caller, request) as prepared:
                decisions = [authorizer.decide(caller, one) for one in prepared.rights]
                decided = zip(prepared.rights, decisions, strict=True)
                right, decision = min(decided, key=lambda one: strictness(one[1]))
                if prepared.error is not None and decision.effect == "allow":
                    raise prepared.error
                if decision.effect == "ask" and asker.kind == "operator":
                    question = await build_question_in_turn(asker, op.name, request, prepared, decisions)
        except PermissionDenied as error:
            return Right(op.name.lower()), denial(error), None
        return right, decision, question

    async def _parse(self, asker: Caller, syscall: Syscall, args: Mapping[str, Any]) -> object:
        """The request that the call's ``prepare`` would get."""
        body = await asker.table.reader.run(asker, codec.encode, {**syscall.omittable, **args})
        try:
            return await syscall.parser(asker.table.reader)(asker, body)
        except BadRequest as error:
            raise BadRequest(f"args: {error}") from None

    def _target(self, caller: Caller, number: int | None) -> int:
        """The caller's id, or that of an agent."""
        return caller.id if number is None or number == caller.id else self._agent(number).id

    def _agent(self, number: int) -> Agent:
        return self.callers.registry.find(number, None)

    def _find_subject(self, asker: Caller, named: str | int) -> Caller:
        """The caller that the operator, or an agent, asks about; a guest only for the operator and for itself."""
        guest = self.callers.find_guest(named)
        if guest is not None and asker.kind == "guest" and asker.name == guest.name and named == guest.name:
            return asker
        if guest is not None and (asker.kind == "operator" or asker is guest):
            return guest
        return (self._agent(named) if isinstance(named, int) else self.callers.registry.find(None, named)).caller

    def syscalls(self) -> tuple[Syscall, ...]:
        made = (
            Syscall(Op.GET_PERMS, calls.GetPerms, prepare=self.prepare_get),
            Syscall(Op.SET_PERMS, calls.SetPerms, prepare=self.prepare_set, audit="intent"),
            Syscall(Op.EXPLAIN, calls.Explain, prepare=self.prepare_explain, audit="outcome"),
        )
        self.served.update({syscall.op: syscall for syscall in made})
        return made


def describe_answer(one: Answer) -> calls.Answer:
    return calls.Answer(
        id=one.id,
        agent=one.agent,
        agent_id=one.subject if isinstance(one.subject, int) else None,
        call=one.action.upper(),
        object=one.object,
        rule=one.rule,
        allow=one.allow,
        reason=one.reason,
        by=one.by,
        at=one.at,
        until=one.until,
    )


def parse_op(name: str) -> Op:
    """The opcode of that name, in lower or upper case."""
    try:
        return Op[name.upper()]
    except KeyError:
        raise BadRequest(f"call: no call is named {quote(name)}{suggest_name(name.upper(), Op.__members__)}") from None


def read_tunnel(args: Mapping[str, Any]) -> Destination:
    """The destination of ``{"method": "CONNECT", "url": "HOST:PORT"}``."""
    try:
        return parse_tunnel(str(args.get("url")))
    except ValueError as error:
        raise BadRequest(f"args.url: {error}") from None


def summarize_set(given: PermissionSet) -> str:
    """A permission set in the format of the audit log."""
    if given.level is not None and LEVELS[given.level] is given:
        return given.level
    return f"{given.name} {shorten(codec.encode(describe_set(given)).decode(), 2000)}"
