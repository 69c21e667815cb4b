"""Every call this kernel serves, in one list."""

from functools import partial

from agentos.agents.registry import Registry
from agentos.agents.supervision import Supervision
from agentos.kernel.caller import Caller
from agentos.kernel.table import Syscall
from agentos.llm.line import Line
from agentos.llm.settings import Party
from agentos.services.mailboxes import Mailboxes
from agentos_sdk.opcodes import Op

from . import agents, host, inspect, messages, metrics, think
from .spawn import Spawning


def table(
    registry: Registry,
    supervision: Supervision,
    spawning: Spawning,
    mail: Mailboxes,
    line: Line,
    everybody: Party,
    max_payload: int,
) -> tuple[Syscall, ...]:
    """What callers may ask for; the connection itself answers HELLO, CANCEL and EXIT."""
    return (
        Syscall(Op.NOOP, None, echo, limit=max_payload),
        *think.syscalls(line, partial(think.seat_of, registry, everybody), max_payload),
        *host.syscalls(registry, supervision),
        *agents.syscalls(registry, supervision, spawning, line),
        *inspect.syscalls(registry, line),
        *messages.syscalls(mail, registry),
        *metrics.syscalls(line, everybody),
    )


def echo(caller: Caller, body: bytes) -> bytes:
    return body
