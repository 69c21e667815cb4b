"""Paths in READ and WRITE: the view of each kind of caller."""

from attrs import field, frozen
from msgspec.structs import replace

from agentos.agents.inherit import effective
from agentos.agents.registry import Registry
from agentos.agents.workspaces.view import View
from agentos.kernel.caller import Caller
from agentos.services.files.resolve import PathRequest
from agentos_sdk.errors import Unavailable


@frozen
class PathResolver:
    """Resolves paths. ``host`` is the operator's view of the host."""

    registry: Registry
    host: View
    guest: View = field(init=False)

    @guest.default
    def _view_of_guests(self) -> View:
        return replace(self.host, single_link=True)

    def path_request(self, caller: Caller, path: str) -> PathRequest:
        """Resolve a caller's path without file access; ``PermissionDenied`` if callers of its kind can't use it."""
        if caller.kind != "agent":
            return (self.host if caller.kind == "operator" else self.guest).request(path)
        agent = self.registry.find(caller.id, None)
        if not agent.spec.jailed:
            return replace(self.guest, max_size=effective(agent.spec).file_size).request(path)
        if agent.life.view is None:  # without the jail's uid and gid files would be accessed as the kernel
            raise Unavailable(f"{agent.name} has ended, and its files with it")
        return agent.life.view.request(path)
