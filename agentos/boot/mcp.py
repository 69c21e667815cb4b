"""Construction of what MCP servers need of the kernel: an identity each, decisions about tools, the way to a URL."""

import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from attrs import define, field

from agentos.access.callers import Callers
from agentos.access.http_permit import make_permit
from agentos.agents.tree.supervision import Supervision
from agentos.database import Database
from agentos.kernel.caller import Caller
from agentos.mcp.pins import Pins, asker_name
from agentos.mcp.servers import Servers
from agentos.mcp.settings import ServerSettings
from agentos.permissions.levels import LEVELS
from agentos.permissions.rule import PermissionSet
from agentos.services.http.client import Client

if TYPE_CHECKING:
    from agentos.mcp.remote import RemoteTransport

MINIMAL = LEVELS["minimal"]  # of a server that isn't configured any more


@define(eq=False, slots=False)
class McpSetup:
    """``settings`` are the configured servers, until :meth:`open_servers` has made what knows the present ones."""

    callers: Callers
    settings: Mapping[str, ServerSettings]
    pins: Pins = field(init=False)
    _servers: Servers | None = None
    _identities: dict[str, tuple[Caller, PermissionSet]] = field(factory=dict)

    def open_servers(self, supervision: Supervision, client: Client) -> Servers:
        """Construct the kernel's MCP servers."""
        self._servers = Servers(
            settings=self.settings,
            supervision=supervision,
            find_owner=lambda: self.owner,
            line=self.callers.line,
            pins=self.pins,
            open_remote=partial(self.open_remote, client),
        )
        return self._servers

    @cached_property
    def owner(self) -> Caller:
        """The operator, as the spawner of all instances of MCP servers."""
        return self.callers.admit_operator(os.geteuid(), "operator#mcp")

    def find_identity(self, server: str) -> Caller:
        """The caller that asks about a server's tools, and sends its HTTP requests, with its rights as configured now.

        It is made when it is first needed.
        """
        settings = self._servers.settings if self._servers is not None else self.settings
        given = settings[server].permissions if server in settings else MINIMAL
        if server not in self._identities:
            self._identities[server] = self.callers.of_server(asker_name(server), given), given
        caller, had = self._identities[server]
        if had != given:
            self.callers.authorizer.replace_all(caller.id, given, self.callers.sets.names)
            self._identities[server] = caller, given
        return caller

    def open_remote(self, client: Client, settings: ServerSettings) -> "RemoteTransport":
        """The transport to a server at a URL. The SDK of MCP has to be loaded."""
        from agentos.mcp.remote import RemoteTransport

        assert settings.url is not None, "the configuration gives it a URL"
        caller = self.find_identity(settings.name)
        return RemoteTransport(settings.url, client, caller.id, make_permit(self.callers, caller))


async def set_up_mcp(database: Database, callers: Callers, settings: Mapping[str, ServerSettings]) -> McpSetup:
    """Load the decisions about the tools of these servers. Raises ``DatabaseError``."""
    made = McpSetup(callers, settings)
    made.pins = callers.approvals.pins = Pins(database, callers.approvals, made.find_identity)
    await made.pins.load(settings)
    return made
