"""What goes along with an agent's snapshot besides layers: its private keys, and its unread mail."""

import logging

import msgspec
from attrs import frozen

from agentos.services.mail.copies import MailCopies
from agentos.services.state.copies import KeptKey
from agentos.services.state.state import State
from agentos.structs import learn
from agentos.threads import run_in_thread

from .records import Snapshot
from .store import Store

log = logging.getLogger(__name__)


@frozen
class Kept:
    """Copies both and gives them back. Never grants, budgets, approvals, or leases."""

    state: State
    mail: MailCopies

    async def copy(self, snapshot: str, account: str) -> bytes:
        """Copy what an agent has now; returns what its snapshot keeps in a file. Raises ``Unavailable``."""
        await self.mail.copy(snapshot, account)
        return msgspec.json.encode(await self.state.copy(account))

    async def give_back(self, store: Store, snapshot: Snapshot) -> None:
        """Give an agent back what its snapshot has of it; for what has no room see the log.

        Raises ``QuotaExceeded``, ``Unavailable`` or ``OSError``.
        """
        await self.state.replace(snapshot.account, await run_in_thread(read_keys, store, snapshot))
        if left := await self.mail.give_back(snapshot.id, snapshot.account):
            log.warning(
                "%s: its mailbox is full: the last %d unread messages of the snapshot stay in it until it is rolled "
                "back to again",
                snapshot.name,
                left,
            )

    async def give_fork(self, store: Store, snapshot: Snapshot, account: str) -> None:
        """Give a fork the keys of a snapshot; a message has one addressee. Raises ``QuotaExceeded`` as well."""
        await self.state.replace(account, await run_in_thread(read_keys, store, snapshot))


learn(list[KeptKey])


def read_keys(store: Store, snapshot: Snapshot) -> list[KeptKey]:
    return msgspec.json.decode(store.read_kept(snapshot), type=list[KeptKey])
