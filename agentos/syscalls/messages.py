"""Handlers of SEND, RECV, BROADCAST and REGISTER."""

import msgspec
import trio

from agentos.agents.registry import Registry
from agentos.agents.spec import check_name
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import LARGE_BODY_BYTES, Syscall
from agentos.permissions.approvals.text import describe_message
from agentos.services.audit.traffic import Party, Traffic
from agentos.services.mailboxes import Mailbox, Mailboxes, Message
from agentos_sdk.calls.messages import Broadcast, Delivered, Recv, Register, Registered, Send, Sent
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import quote
from agentos_sdk.errors import BadRequest, NotFound
from agentos_sdk.opcodes import Op

BATCH = 64  # mailboxes that BROADCAST checks between two checkpoints: 1 ms


def syscalls(mail: Mailboxes, registry: Registry, traffic: Traffic) -> tuple[Syscall, ...]:
    def prepare_send(caller: Caller, request: Send) -> Prepared:
        box = find_box(mail, request)

        def act(caller: Caller) -> Sent:
            if registry.is_over(box.id):
                raise NotFound(f"{box.name} has ended and reads no messages")
            box.put(make_letter(caller, request.message))
            traffic.count(caller.id, Party(caller.kind, caller.shown_name, "SEND"), name_peer(box))
            return Sent(delivered_to=box.id)

        def show() -> str:
            assert isinstance(request.message, msgspec.Raw)
            return describe_message("SEND to", name_peer(box), [("", bytes(request.message).decode(errors="replace"))])

        return Prepared((right_to_send(box),), act, shown=show)

    def prepare_broadcast(caller: Caller, request: Broadcast) -> Prepared:
        def is_recipient(box: Mailbox) -> bool:
            if box.id == caller.id:
                return request.include_self
            return (
                not registry.is_over(box.id) and caller.authorizer.decide(caller, right_to_send(box)).effect == "allow"
            )

        async def act(caller: Caller) -> Delivered:
            letter, boxes = make_letter(caller, request.message), []
            for number, box in enumerate(list(mail), 1):
                if is_recipient(box):
                    boxes.append(box)
                if not number % BATCH:
                    await trio.lowlevel.checkpoint()
            count, full = mail.post_all(letter, boxes)  # no checkpoint: all mailboxes get broadcasts in the same order
            return Delivered(delivered_count=count, full=full)

        return Prepared((Right("broadcast"),), act)

    async def recv(call: Call, request: Recv) -> bytes:
        if request.max < 1:
            raise BadRequest(f"max: expected at least 1, got {request.max}")
        box = mail.by_id(call.caller.id)
        if not box.is_readable and request.wait and request.timeout > 0:
            with trio.move_on_after(request.timeout):
                await box.wait()
        await call.caller.allowance.wait_for_reply_room()  # a caller that doesn't read its replies gets no more of them
        letters = box.take(request.max)
        call.undelivered = lambda: box.put_back(letters)
        for letter in letters:
            peer = "operator" if letter.from_kind == "operator" else letter.from_name
            traffic.count(call.caller.id, Party(call.caller.kind, call.caller.shown_name, "RECV"), peer)
        return encode_letters(letters)

    def register(caller: Caller, request: Register) -> Registered:
        check_name(request.name, "name")
        mail.register(caller.id, request.name)
        return Registered(agent_id=caller.id, name=request.name)

    def make_letter(caller: Caller, message: object) -> Message:
        assert isinstance(message, msgspec.Raw)
        return Message(caller.id, mail.by_id(caller.id).name, caller.kind, bytes(message))

    return (
        Syscall(Op.SEND, Send, prepare=prepare_send, limit=LARGE_BODY_BYTES, verbatim=("message",)),
        Syscall(Op.RECV, Recv, handler=recv, failure={"messages": [], "count": 0}),
        Syscall(
            Op.BROADCAST,
            Broadcast,
            prepare=prepare_broadcast,
            limit=LARGE_BODY_BYTES,
            verbatim=("message",),
            in_order=True,
        ),
        Syscall(Op.REGISTER, Register, handler=register),
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


def encode_letters(letters: list[Message]) -> bytes:
    """RECV's reply, assembled around messages that are JSON already."""
    messages = b",".join(
        b'{"from_id":%d,"from":%d,"from_name":%s,"from_kind":%s,"message":%s,"sent_at":%.6f,"age_ms":%d}'
        % (
            letter.from_id,
            letter.from_id,
            codec.encode(letter.from_name),
            codec.encode(letter.from_kind),
            letter.body,
            letter.sent_at,
            letter.age * 1000,
        )
        for letter in letters
    )
    return b'{"success":true,"count":%d,"messages":[%s]}' % (len(letters), messages)
