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
    nothing: Any = None
    deps = SimpleNamespace(
        jails=SimpleNamespace(images=nothing),
        host_view=View("/", "/"),
    )
    callers = SimpleNamespace(
        registry=Registry(),
        mail=Mailboxes(),
        line=nothing,
        approvals=nothing,
        background=nothing,
        kernel_account=nothing,
        queue_path=nothing,
        authorizer=SimpleNamespace(holds_grant=nothing, granted_prefixes=nothing, observers=[]),
    )
    services = Services(
        supervision=SimpleNamespace(deps=deps),  # type: ignore[arg-type]
        callers=callers,  # type: ignore[arg-type]
        state=SimpleNamespace(account=nothing),  # type: ignore[arg-type]
        events=EventLog(),
        traffic=nothing,
        sampler=nothing,
        audit=nothing,
        lives=SimpleNamespace(reader=nothing),  # type: ignore[arg-type]
        logs=nothing,
        storage=nothing,
        http=SimpleNamespace(egress=nothing),  # type: ignore[arg-type]
        mcp=nothing,
        snapshots=SimpleNamespace(overlays=nothing),  # type: ignore[arg-type]
        recordings=nothing,
        replays=nothing,
        imports=nothing,
        reload=nothing,
        max_payload=1 << 20,
    )
    return table(services)
