"""Calls about the connection itself, which it answers without the table; handlers of HELLO, CANCEL and EXIT."""

from collections.abc import Mapping

from agentos import __version__
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.deferred import Deferred
from agentos_sdk.calls.connection import Cancel, Hello, Welcome, Withdrawn
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, PermissionDenied
from agentos_sdk.opcodes import Op

from .replies import encode_error

OPS = frozenset({Op.HELLO, Op.CANCEL, Op.EXIT})  # answered by the connection itself, and allowed without a right


async def hello(caller: Caller, body: bytes, version: int) -> tuple[Hello, bytes]:
    """Answer HELLO: the request, and the reply to it. ``version`` is the present protocol version."""
    request = await caller.table.reader.read(caller, body, Hello)
    if request.protocol < version:
        raise BadRequest(f"protocol: this connection already speaks version {version}, got {request.protocol}")
    if request.of_guest:
        if caller.become is None:
            raise PermissionDenied("as, level, permissions, mailbox: only an operator's connection can become a guest")
        kept = request.mailbox == "kept"
        await caller.become(caller, request.as_, request.level, request.permissions, kept)
    told = caller.replayed or caller.told or caller
    welcome = Welcome(
        protocol=request.protocol,
        kernel_version=__version__,
        agent_id=told.id,
        name=told.name,
        features={"streams": request.protocol == 2, "cancel": request.protocol == 2},
    )
    return request, codec.encode(welcome)


async def cancel(caller: Caller, calls: Mapping[int, Call | Deferred], body: bytes) -> bytes:
    """Cancel a request; ``cancelled`` is false if it was already answered or never existed."""
    try:
        call = calls.get((await caller.table.reader.read(caller, body, Cancel)).id)
    except BadRequest as error:
        return tell(caller, Op.CANCEL, body, encode_error(error))
    reply = tell(caller, Op.CANCEL, body, codec.encode(Withdrawn(cancelled=call is not None)))
    if call is not None:
        call.cancel()
    return reply


def leave(caller: Caller, body: bytes) -> bytes:
    """Answer EXIT; the connection ends."""
    return tell(caller, Op.EXIT, body, b"goodbye")


def tell(caller: Caller, op: int, body: bytes, reply: bytes) -> bytes:
    """Tell an observer of a call that is answered here; returns the reply."""
    if (observer := caller.table.observer) is not None:
        observer.pass_by(caller, op, body, reply)
    return reply
