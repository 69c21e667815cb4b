"""Handlers of APPROVALS and DECIDE."""

from attrs import frozen
from msgspec.structs import asdict

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.replies import encode_in_turns
from agentos.permissions.approvals.approvals import Approvals
from agentos.permissions.shown_lines import split_lines, to_plain
from agentos_sdk.calls.operator import permissions as calls
from agentos_sdk.errors import BadRequest, PermissionDenied
from agentos_sdk.opcodes import Op

FIELDS = tuple(calls.Pending.__annotations__)
MAX_SHOWN_CHARS = 1 << 20  # of all texts in one list, or a single longer one


@frozen
class ApprovalCalls:
    """Handlers of APPROVALS and DECIDE."""

    approvals: Approvals

    async def prepare_list(self, caller: Caller, request: calls.Approvals) -> Prepared:
        async def act(call: Call) -> calls.ApprovalsReply:
            if request.follow:
                call.require_stream("follow")
                while True:  # until the client withdraws it
                    await call.send(await encode_in_turns(self._list()))
                    await self.approvals.wait_for_news()
            return self._list()

        return Prepared((Right("approvals"),), act)

    async def prepare_decide(self, caller: Caller, request: calls.Decide) -> Prepared:
        """The decision is recorded as APPROVAL_DECIDED."""
        if request.forget and request.allow:
            raise BadRequest("allow: expected false with forget, which revokes a remembered answer")
        lasting = request.forget or request.remember != "once"
        if caller.kind != "operator" and (lasting or request.via is not None):
            raise PermissionDenied("remember, forget, via: only for the operator, a link's answer holds once")

        async def act(call: Call) -> calls.Decided:
            if request.forget:
                await self.approvals.forget(caller, request.id)
            else:
                remembered = (request.remember, request.for_, request.reason)
                bound = (request.digest, request.via, request.any_path)
                await self.approvals.decide(caller, request.id, request.allow, *remembered, *bound)
            return calls.Decided(id=request.id)

        return Prepared((Right("decide"),), act, f"approval {request.id}")

    def _list(self) -> calls.ApprovalsReply:
        waiting, listed, room = self.approvals.pending(), list[calls.Pending](), MAX_SHOWN_CHARS
        for pending in waiting:
            room -= len(pending.shown)
            if listed and room < 0:
                break
            shown = {"shown": to_plain(pending.shown), "lines": split_lines(pending.shown)}
            one = asdict(pending) | shown | {"path": self.approvals.path_of(pending.id)}
            listed.append(calls.Pending(**{name: one[name] for name in FIELDS}))
        return calls.ApprovalsReply(pending=listed, omitted=len(waiting) - len(listed))

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.APPROVALS, calls.Approvals, prepare=self.prepare_list),
            Syscall(Op.DECIDE, calls.Decide, prepare=self.prepare_decide),
        )
