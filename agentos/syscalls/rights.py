"""What the calls ask of whoever knows the callers and what they hold."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import Limits
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.llm.settings import Seat
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos.permissions.rule import PermissionSet
from agentos_sdk.opcodes import Op


class Rights(Protocol):
    """Implemented by :class:`agentos.callers.Callers`."""

    authorizer: PermissionAuthorizer
    priced: bool

    async def read(self, wanted: object, field: str, call: str, caller: Caller) -> PermissionSet:
        """The permission set that a request means; ``BadRequest`` with all that is wrong with it."""

    def give(self, agent: Agent, given: PermissionSet, by: Caller) -> None:
        """Another set for an agent; it holds for its next call and, within theirs, for those of all below it."""

    async def check_narrower(self, caller: Caller, given: PermissionSet, field: str) -> None:
        """Raise where the caller can't give this set to itself: ``PermissionDenied``, ``QuotaExceeded``."""

    def narrow(self, caller: Caller, given: PermissionSet) -> None:
        """Let a caller have no more than a set from now on."""

    def limits(self, caller: Caller) -> Limits:
        """Those that agents which it spawns get at most, by its permissions."""

    def seat(self, caller: Caller) -> Seat:
        """Where a caller's questions wait."""


def to_agent(registry: Registry, op: Op) -> Callable[[Caller, Any], Awaitable[Sequence[Right]]]:
    """What a call needs that concerns the agent which the request names by ``id`` or ``name``."""

    async def rights(caller: Caller, request: Any) -> Sequence[Right]:
        return [Right(op.name.lower(), agent=registry.find(request.id, request.name).id)]

    return rights
