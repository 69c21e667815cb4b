"""Construction of the state directory's bound: what may be dropped, in which order."""

from agentos.config.schema import StorageTable
from agentos.services.logs.files import KERNEL
from agentos.services.storage.bound import Droppable, StorageBound

from .access import Access
from .host import Host


def bound_storage(settings: StorageTable, host: Host, access: Access) -> StorageBound:
    """The bound. A new kind that may be dropped is a line of the order, here and in docs/reference/configuration.md."""
    logs = access.logs

    async def free_ended(wanted: int) -> int:
        kept = {KERNEL, *(agent.name for agent in access.callers.registry if not agent.over.is_set())}
        return await logs.free(wanted, lambda file: file.name not in kept)

    async def free_kernels(wanted: int) -> int:
        return await logs.free(wanted, lambda file: file.name == KERNEL and file.run < logs.run)

    order = (
        Droppable("logs of agents that have ended", free_ended),
        Droppable("events that have left memory, or are of former runs", access.event_log.free),
        Droppable("the kernel's log of former runs", free_kernels),
    )
    return StorageBound(host.state_dir, settings.max_total, order)
