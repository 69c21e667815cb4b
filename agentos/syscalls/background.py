"""Handler of ASYNC_POLL."""

from agentos.kernel.background import Background, BackgroundCall
from agentos.kernel.call import Call
from agentos.kernel.syscall import Syscall
from agentos_sdk.calls.background import AsyncPoll
from agentos_sdk.encoding import codec
from agentos_sdk.opcodes import Op

from .json_text import encode_json


def syscalls(background: Background) -> tuple[Syscall, ...]:
    async def poll(call: Call, request: AsyncPoll) -> bytes:
        caller = call.caller
        await caller.allowance.wait_for_reply_room()  # a caller that doesn't read its replies gets no more of them
        taken = background.take(caller.id, request.max)
        call.undelivered = lambda: background.put_back(caller.id, taken)
        results = b",".join([await encode_result(each) for each in taken])
        return b'{"success":true,"results":[%s],"count":%d}' % (results, len(taken))

    return (Syscall(Op.ASYNC_POLL, AsyncPoll, handler=poll, failure={"results": [], "count": 0}),)


async def encode_result(answered: BackgroundCall) -> bytes:
    assert answered.reply is not None, "only answered calls are taken"
    return b'{"request_id":%s,"opcode":%d,"opcode_name":%s,"payload":"%s"}' % (
        codec.encode(answered.id),
        answered.op,
        codec.encode(answered.op.name),
        await encode_json(answered.reply),
    )
