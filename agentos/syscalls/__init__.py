"""Every call this kernel serves, in one list."""

from agentos.agents.registry import Registry
from agentos.agents.supervision import Supervision
from agentos.kernel.caller import Caller
from agentos.kernel.table import Syscall
from agentos.services.mailboxes import Mailboxes
from agentos_sdk.opcodes import Op

from . import agents, host, inspect, messages
from .spawn import Spawning


def table(
    registry: Registry, supervision: Supervision, spawning: Spawning, mail: Mailboxes, max_payload: int
) -> tuple[Syscall, ...]:
    """What callers may ask for; the connection itself answers HELLO, CANCEL and EXIT."""
    return (
        Syscall(Op.NOOP, None, echo, limit=max_payload),
        *host.syscalls(registry, supervision),
        *agents.syscalls(registry, supervision, spawning),
        *inspect.syscalls(registry),
        *messages.syscalls(mail, registry),
    )


def echo(caller: Caller, body: bytes) -> bytes:
    return body
