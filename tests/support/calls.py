"""All system calls of the kernel as its list has them, without the services behind them."""

from types import SimpleNamespace
from typing import Any

from agentos.agents.registry import Registry
from agentos.agents.workspaces.view import View
from agentos.kernel.table import Syscall
from agentos.services.mailboxes import Mailboxes
from agentos.syscalls import Services, table


def syscalls() -> tuple[Syscall, ...]:
    """None of them may be called."""
    registry, mail = Registry(), Mailboxes()
    nothing: Any = None
    deps = SimpleNamespace(deps=SimpleNamespace(health=SimpleNamespace(commands=nothing), run=SimpleNamespace(id="")))
    callers = SimpleNamespace(queue_path=nothing)
    services = Services(registry, deps, callers, mail, nothing, nothing, nothing, nothing, View("/", "/"), 1 << 20)  # type: ignore[arg-type]
    return table(services)
