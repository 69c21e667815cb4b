"""What the core asks of the rest of the system."""

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from .caller import Caller


@frozen
class Right:
    """What a call is about to do, and to what: ``Right("kill", agent=7)``."""

    action: str
    agent: int | None = None


class Authorizer(Protocol):
    """Decides what a caller may do. Never waits: it is asked in the middle of a read."""

    def check(self, caller: "Caller", right: Right) -> None:
        """Return when ``caller`` holds the right; raise :class:`~agentos_sdk.errors.PermissionDenied` when not."""
