"""Handler of RELOAD."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agentos.agents.tree.changes import TreeChange
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos_sdk.calls.operator import reload as calls
from agentos_sdk.opcodes import Op


class Reloaded(Protocol):
    """What a reload has changed, or would change; see ``agentos.config.reload``."""

    @property
    def changes(self) -> Sequence[TreeChange]: ...
    @property
    def settings(self) -> Sequence[str]: ...
    @property
    def kernel_restart(self) -> Sequence[str]: ...


Request = Callable[[bool], Awaitable[Reloaded]]
"""Reads the configuration file again; with True it only says what would change."""


def syscalls(reload: Request) -> tuple[Syscall, ...]:
    async def prepare(caller: Caller, request: calls.Reload) -> Prepared:
        async def act(call: Call) -> calls.Reloaded:
            found = await reload(request.dry_run)
            return calls.Reloaded(
                changes=[
                    calls.Change(agent=change.name, change=change.kind, fields=change.fields)
                    for change in found.changes
                ],
                settings=found.settings,
                kernel_restart=found.kernel_restart,
            )

        return Prepared((Right("reload"),), act, about="dry run" if request.dry_run else "")

    return (Syscall(Op.RELOAD, calls.Reload, prepare=prepare, audit="intent"),)
