"""Interface of the system calls to the callers' permission sets and limits."""

from typing import Protocol

from agentos.agents.registry import Agent
from agentos.agents.spec import Limits
from agentos.kernel.caller import Caller
from agentos.llm.settings import QueuePath
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos.permissions.rule import PermissionSet


class Rights(Protocol):
    """Implemented by :class:`agentos.access.callers.Callers`."""

    authorizer: PermissionAuthorizer
    priced: bool

    async def read(self, wanted: object, field: str, call: str, caller: Caller) -> PermissionSet:
        """Parse the permission set of a request; raises ``BadRequest`` with all its mistakes."""

    def give(self, agent: Agent, given: PermissionSet, by: Caller) -> None:
        """Replace an agent's set. It applies to the next call, and as an upper bound to all descendants."""

    async def check_narrower(self, caller: Caller, given: PermissionSet, field: str) -> None:
        """Raise ``PermissionDenied`` or ``QuotaExceeded`` if the caller can't narrow itself to this set."""

    def narrow(self, caller: Caller, given: PermissionSet) -> None:
        """Limit a caller to a set from now on."""

    def limits(self, caller: Caller) -> Limits:
        """Upper limits, by the caller's permissions, for agents that it spawns."""

    def queue_path(self, caller: Caller) -> QueuePath:
        """The caller's place in the model's queue."""
