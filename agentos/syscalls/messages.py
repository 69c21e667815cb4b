"""Handlers of SEND, RECV, ACK, MAIL, BROADCAST and REGISTER."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec
import trio
from attrs import frozen
from outcome import Value

from agentos.agents.registry import Registry
from agentos.agents.spec import check_name
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.drivers import Begin, Done, Result, Withdraw
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import LARGE_BODY_BYTES, Syscall
from agentos.permissions.approvals.text import describe_message
from agentos.services.audit.traffic import Party, Traffic
from agentos.services.mail.mailbox import MAX_BATCH_BYTES, Mailbox, Message
from agentos.services.mail.mailboxes import KERNEL_ID, Mailboxes
from agentos_sdk.calls.messages import (
    Ack,
    Acknowledged,
    Broadcast,
    Delivered,
    Mail,
    MailboxCounts,
    MailReply,
    Recv,
    Register,
    Registered,
    Send,
    Sent,
)
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import quote
from agentos_sdk.errors import BadRequest, CallError, NotFound, PermissionDenied
from agentos_sdk.opcodes import Op

BATCH = 64  # mailboxes that BROADCAST checks between two checkpoints: 1 ms
MIN_LEASE, MAX_LEASE = 1.0, 3600.0  # seconds


@frozen(eq=False)
class Messages:
    """Answers these calls. ``account`` names the account of a caller's state, by which families are known."""

    mail: Mailboxes
    registry: Registry
    traffic: Traffic
    account: Callable[[Caller], str]

    def syscalls(self) -> tuple[Syscall, ...]:
        """SEND, RECV, ACK, MAIL, BROADCAST and REGISTER."""
        return (
            Syscall(
                Op.SEND,
                Send,
                prepare=self.prepare_send,
                limit=LARGE_BODY_BYTES,
                verbatim=("message",),
                in_order=True,
                deferred=True,
            ),
            Syscall(Op.RECV, Recv, handler=self.recv, failure={"messages": [], "count": 0}),
            Syscall(Op.ACK, Ack, handler=self.ack, failure={"acked": 0}),
            Syscall(Op.MAIL, Mail, prepare=self.prepare_mail, failure={"messages": [], "count": 0}, audit="outcome"),
            Syscall(
                Op.BROADCAST,
                Broadcast,
                prepare=self.prepare_broadcast,
                limit=LARGE_BODY_BYTES,
                verbatim=("message",),
                in_order=True,
            ),
            Syscall(Op.REGISTER, Register, handler=self.register),
        )

    def prepare_send(self, caller: Caller, request: Send) -> Prepared:
        box = find_box(self.mail, request)

        def act(caller: Caller) -> Sent | Begin:
            if self.registry.is_over(box.id):
                raise NotFound(f"{box.name} has ended and reads no messages")
            message, number = self.make_message(caller, request.message), box.id
            if box.kept is not None:
                return partial(self.begin_send, caller, box, message, number)
            box.put(message)
            return self.note_sent(caller, box, number)

        def show() -> str:
            assert isinstance(request.message, msgspec.Raw)
            return describe_message("SEND to", name_peer(box), [("", bytes(request.message).decode(errors="replace"))])

        return Prepared((right_to_send(box),), act, shown=show)

    def begin_send(self, caller: Caller, box: Mailbox, message: Message, number: int, done: Done) -> Withdraw:
        def end(result: Result) -> None:
            done(Value(self.note_sent(caller, box, number)) if isinstance(result, Value) else result)

        return self.mail.begin_post(box, message, end)

    def note_sent(self, caller: Caller, box: Mailbox, number: int) -> Sent:
        self.traffic.count(caller.id, Party(caller.kind, caller.shown_name, "SEND"), name_peer(box))
        return Sent(delivered_to=number)

    def prepare_broadcast(self, caller: Caller, request: Broadcast) -> Prepared:
        def is_recipient(box: Mailbox) -> bool:
            if box.id == caller.id:
                return request.include_self
            return (
                not self.registry.is_over(box.id)
                and caller.authorizer.decide(caller, right_to_send(box)).effect == "allow"
            )

        async def act(caller: Caller) -> Delivered:
            message, boxes = self.make_message(caller, request.message), []
            for number, box in enumerate(list(self.mail), 1):
                if is_recipient(box):
                    boxes.append(box)
                if not number % BATCH:
                    await trio.lowlevel.checkpoint()
            # At once: all mailboxes get broadcasts in the same order.
            count, full = await self.mail.post_all(message, boxes)
            return Delivered(delivered_count=count, full=full)

        return Prepared((Right("broadcast"),), act)

    async def recv(self, call: Call, request: Recv) -> bytes:
        if request.max < 1:
            raise BadRequest(f"max: expected at least 1, got {request.max}")
        if request.lease is not None and not MIN_LEASE <= request.lease <= MAX_LEASE:
            raise BadRequest(f"lease: expected {MIN_LEASE:g} to {MAX_LEASE:g} seconds, got {request.lease:g}")
        box = self.mail.by_id(call.caller.id)
        if not box.is_readable and request.wait and request.timeout > 0:
            with trio.move_on_after(request.timeout):
                await box.wait()
        await call.caller.allowance.wait_for_reply_room()  # a caller that doesn't read its replies gets no more of them
        messages = await self.mail.leases.take(box, request.max, request.lease)
        call.undelivered = partial(self.mail.leases.put_back, box, messages, leased=request.lease is not None)
        for message in messages:
            peer = "operator" if message.from_kind == "operator" else message.from_name
            self.traffic.count(call.caller.id, Party(call.caller.kind, call.caller.shown_name, "RECV"), peer)
        return encode_messages(messages)

    async def ack(self, call: Call, request: Ack) -> Acknowledged:
        if not request.ids:
            raise BadRequest("ids: expected at least one id of a message")
        return Acknowledged(acked=await self.mail.leases.acknowledge(self.mail.by_id(call.caller.id), request.ids))

    async def prepare_mail(self, caller: Caller, request: Mail) -> Prepared:
        if request.name is None:
            return self.prepare_mailboxes(caller, request)
        box, is_operator = self.mail.find(request.name), caller.kind == "operator"
        is_known = self.mail.is_open(box) or self.registry.get(box.id) is not None
        owner = box.id if is_known else KERNEL_ID  # kept for a guest that has gone, or by an earlier kernel

        async def act(call: Call) -> bytes:
            requeued = await self.mail.requeue(box, request.requeue) if request.requeue else 0
            dropped = await self.mail.drop(box, request.drop, dead=request.dead) if request.drop else 0
            now, found = trio.current_time(), box.dead if request.dead else box.messages
            leases = [] if request.dead else [*box.leases.values()]
            every = sorted((*(lease.message for lease in leases), *found), key=lambda message: message.id)
            first = request.after if request.after is not None else -1
            shown = islice((one for one in every if one.id > first), request.limit if is_operator else 0)
            return encode_mail(
                list(shown), len(every), requeued, dropped, {one.message.id: one.ends - now for one in leases}
            )

        error = None
        if not is_operator and (request.requeue or request.drop):
            error = PermissionDenied("requeue, drop: only the operator may change what is in a mailbox")
        return Prepared((Right("mail", agent=owner),), act, about=request.name, error=error)

    def prepare_mailboxes(self, caller: Caller, request: Mail) -> Prepared:
        async def act(call: Call) -> MailReply:
            filled = [count_mailbox(box) for box in self.mail.list_filled()]
            filled.sort(key=lambda one: (-one.dead, -one.waiting - one.leased, one.name))
            return MailReply(messages=(), count=len(filled), mailboxes=filled[: request.limit])

        error: CallError | None = None
        if caller.kind != "operator":
            error = PermissionDenied("name: required field missing: only the operator sees all mailboxes")
        elif request.dead or request.after is not None or request.requeue or request.drop:
            error = BadRequest("name: required field missing, with dead, after, requeue and drop")
        return Prepared((Right("mail", agent=caller.id),), act, error=error)

    def register(self, caller: Caller, request: Register) -> Registered:
        check_name(request.name, "name")
        self.mail.register(caller.id, request.name)
        return Registered(agent_id=caller.id, name=request.name)

    def make_message(self, caller: Caller, message: object) -> Message:
        assert isinstance(message, msgspec.Raw)
        return Message(
            from_id=caller.id,
            from_name=self.mail.by_id(caller.id).name,
            from_kind=caller.kind,
            body=bytes(message),
            id=next(self.mail.numbers),
            family="" if caller.kind == "operator" else self.account(caller).partition("/")[0],
        )


def find_box(mail: Mailboxes, request: Send) -> Mailbox:
    """The mailbox that a message is for. Raises ``BadRequest`` or ``NotFound``."""
    if (request.to is None) == (request.to_name is None):
        raise BadRequest("to: expected exactly one of to (an id or a name) and to_name")
    if isinstance(request.to, str) and request.to.isdecimal():
        raise BadRequest(f"to: expected an id, which is a number, or a name, got {quote(request.to)}")
    to = request.to if request.to is not None else request.to_name
    return mail.by_id(to) if isinstance(to, int) else mail.by_name(to or "")


def name_peer(box: Mailbox) -> str:
    """A mailbox's owner for the audit log; a connection of the operator's that has no name is the operator."""
    return box.name if box.names else "operator"


def right_to_send(box: Mailbox) -> Right:
    return Right("send", agent=box.id)


def encode_messages(messages: list[Message]) -> bytes:
    """RECV's reply, assembled around messages that are JSON already."""
    encoded = b",".join(
        b'{"id":%d,"attempt":%d,"from_id":%d,"from":%d,"from_name":%s,"from_kind":%s,"message":%s,"sent_at":%.6f,"age_ms":%d}'
        % (
            message.id,
            message.attempt,
            message.from_id,
            message.from_id,
            codec.encode(message.from_name),
            codec.encode(message.from_kind),
            message.body,
            message.sent_at,
            message.age * 1000,
        )
        for message in messages
    )
    return b'{"success":true,"count":%d,"messages":[%s]}' % (len(messages), encoded)


def count_mailbox(box: Mailbox) -> MailboxCounts:
    present = [*box.messages, *(lease.message for lease in box.leases.values())]
    return MailboxCounts(
        name=box.name,
        kept=box.kept is not None,
        waiting=len(box.messages),
        leased=len(box.leases),
        dead=len(box.dead),
        size=sum(len(message.body) for message in (*present, *box.dead)),
        oldest_at=min((message.sent_at for message in present), default=None),
    )


def encode_mail(
    messages: Sequence[Message], count: int, requeued: int, dropped: int, leases: Mapping[int, float]
) -> bytes:
    """MAIL's reply with the first of ``messages``, as many as fit; ``leases`` are seconds by the message's id."""
    shown, size = list[bytes](), 0
    for message in messages:
        size += len(message.body)
        if shown and size > MAX_BATCH_BYTES:
            break
        shown.append(
            b'{"id":%d,"from_id":%d,"from_name":%s,"sent_at":%.6f,"attempt":%d,"size":%d,"message":%s,"leased":%s}'
            % (
                message.id,
                message.from_id,
                codec.encode(message.from_name),
                message.sent_at,
                message.attempt,
                len(message.body),
                message.body,
                b"%.3f" % leases[message.id] if message.id in leases else b"null",
            )
        )
    rest = (b",".join(shown), count, requeued, dropped)
    return b'{"success":true,"messages":[%s],"count":%d,"requeued":%d,"dropped":%d,"mailboxes":[]}' % rest
