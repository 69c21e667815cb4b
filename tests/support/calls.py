"""All system calls of the kernel as its list has them, without the services behind them."""

from types import SimpleNamespace
from typing import Any

from agentos.agents.registry import Registry
from agentos.agents.workspaces.view import View
from agentos.kernel.syscall import Syscall
from agentos.services.event_log.ring import EventLog
from agentos.services.mail.mailboxes import Mailboxes
from agentos.syscalls import Services, table


def syscalls() -> tuple[Syscall, ...]:
    """None of them may be called."""
    registry, mail = Registry(), Mailboxes()
    nothing: Any = None
    deps = SimpleNamespace(deps=SimpleNamespace(health=SimpleNamespace(commands=nothing), run=SimpleNamespace(id="")))
    callers = SimpleNamespace(
        queue_path=nothing, authorizer=SimpleNamespace(holds_grant=nothing, granted_prefixes=nothing, observers=[])
    )
    services = Services(
        registry=registry,
        reload=nothing,
        supervision=deps,  # type: ignore[arg-type]
        callers=callers,  # type: ignore[arg-type]
        mail=mail,
        state=SimpleNamespace(account=nothing),  # type: ignore[arg-type]
        events=EventLog(),
        line=nothing,
        kernel_account=nothing,
        sampler=nothing,
        audit=nothing,
        lives=SimpleNamespace(reader=nothing),  # type: ignore[arg-type]
        approvals=nothing,
        logs=nothing,
        storage=nothing,
        snapshots=SimpleNamespace(overlays=nothing),  # type: ignore[arg-type]
        recordings=nothing,
        replays=nothing,
        images=nothing,
        imports=nothing,
        background=nothing,
        traffic=nothing,
        host_view=View("/", "/"),
        http=nothing,
        mcp=nothing,
        max_payload=1 << 20,
    )
    return table(services)
