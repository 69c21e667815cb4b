"""System calls: the list of all calls this kernel serves."""

from collections.abc import Mapping

from agentos.agents.registry import Registry
from agentos.agents.supervision import Supervision
from agentos.kernel.caller import Caller
from agentos.kernel.table import LARGE, Syscall
from agentos.llm.line import Line
from agentos.llm.settings import Account
from agentos.services.audit.log import Audit
from agentos.services.mailboxes import Mailboxes
from agentos_sdk.opcodes import Op

from . import agents, audit, exec, files, inspect, messages, metrics, permissions, think
from .rights import Rights
from .spawn import Spawning


def table(
    registry: Registry,
    supervision: Supervision,
    spawning: Spawning,
    rights: Rights,
    mail: Mailboxes,
    line: Line,
    kernel_account: Account,
    log: Audit,
    base: str,
    max_payload: int,
) -> tuple[Syscall, ...]:
    """All system calls except HELLO, CANCEL and EXIT, which the connection answers itself.

    ``base`` is the directory that the operator's relative paths are resolved against.
    """
    calls = (
        Syscall(Op.NOOP, None, handler=echo, limit=max_payload),
        *think.syscalls(line, rights.queue_path, max_payload),
        *files.syscalls(registry, base, max_payload),
        *exec.syscalls(registry, supervision, base),
        *agents.syscalls(registry, supervision, spawning, line),
        *inspect.syscalls(registry, line),
        *messages.syscalls(mail, registry),
        *metrics.syscalls(line, kernel_account),
        *audit.syscalls(log),
    )
    return (*calls, *permissions.syscalls(registry, rights, calls))


def reserved(max_payload: int) -> Mapping[Op, int]:
    """Body limits of calls that this kernel doesn't serve yet: clients may send them."""
    return {Op.HTTP: max_payload, Op.STORE: LARGE, Op.EMIT: LARGE}


def echo(caller: Caller, body: bytes) -> bytes:
    return body
