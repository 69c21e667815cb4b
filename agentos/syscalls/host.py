"""EXEC."""

import codecs
from collections.abc import Sequence

import trio

from agentos.agents import dwelling, guests
from agentos.agents.registry import Agent, Registry
from agentos.agents.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.table import Syscall
from agentos.sandbox.plan import WORKSPACE
from agentos.sandbox.policy import Program
from agentos.sandbox.status import Status
from agentos_sdk import codec
from agentos_sdk.calls.host import Exec
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op

LONGEST = 3600.0  # seconds
PIECE = 64 << 10  # bytes of output made into JSON at a time


def syscalls(registry: Registry, supervision: Supervision) -> tuple[Syscall, ...]:
    async def execute(call: Call, request: Exec) -> bytes:
        agent = whose(registry, call.caller, request)
        await call.require(Right("exec", agent=agent.id))
        if not 0 < request.timeout <= LONGEST:
            raise BadRequest(f"timeout: expected more than 0 and at most {LONGEST:g} seconds, got {request.timeout:g}")
        asked = program(agent, request)
        done = await guests.run(supervision.kit.jails, agent, asked, request.timeout, call.caller.kind)
        await call.caller.allowance.wait_for_bytes()  # who doesn't read its replies gets no more of them
        return await written(done)

    return (Syscall(Op.EXEC, Exec, execute),)


def whose(registry: Registry, caller: Caller, request: Exec) -> Agent:
    """The agent in whose jail it is to run: an agent's own, where none is named."""
    if request.name is None and request.id is None and caller.kind == "agent":
        return registry.find(caller.id, None)
    return registry.find(request.id, request.name)


def program(agent: Agent, request: Exec) -> Program:
    """What is to run, with the agent's own environment and in its own directory where nothing else is said."""
    argv: Sequence[str] = request.command if not isinstance(request.command, str) else ("sh", "-c", request.command)
    if not argv or not argv[0]:
        raise BadRequest("command: expected a line for the shell, or a program and its arguments")
    for name in request.env:
        if not name or "=" in name or name.startswith("AGENTOS_"):
            raise BadRequest(f"env.{name}: expected a variable's name, without '=' and not AGENTOS_... (ours)")
    try:
        directory = dwelling.directory_inside(request.cwd) if request.cwd is not None else agent.spec.cwd or WORKSPACE
    except dwelling.Misplaced as error:
        raise BadRequest(str(error)) from None
    own = agent.jail.making.environment if agent.jail is not None else {}
    return Program(tuple(argv), {**own, **request.env}, directory, stdin=request.stdin.encode())


async def written(done: guests.Done) -> bytes:
    """The reply, made piece by piece: between two of them others have their turn."""
    return b'{"success":true,"stdout":"%s","stderr":"%s","exit_code":%d,"timed_out":%s,"truncated":%s}' % (
        await as_json(done.stdout.kept),
        await as_json(done.stderr.kept),
        exit_code(done.status),
        codec.encode(done.timed_out),
        codec.encode(done.stdout.truncated or done.stderr.truncated),
    )


async def as_json(output: bytearray) -> bytes:
    """Text as it stands between quotes; what isn't UTF-8 is replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    for start in range(0, len(output), PIECE):
        pieces.append(codec.encode(decoder.decode(output[start : start + PIECE]))[1:-1])
        await trio.lowlevel.checkpoint()
    pieces.append(codec.encode(decoder.decode(b"", final=True))[1:-1])
    return b"".join(pieces)


def exit_code(status: Status) -> int:
    """As a shell has it."""
    return status.code if status.code is not None else 128 + (status.signal or 0)
