"""MCP servers in a configuration file: the ``[mcp.servers.NAME]`` tables."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

from attrs import field, frozen
from msgspec.structs import replace

from agentos.agents.builder import Request, build
from agentos.agents.paths import HostPaths
from agentos.agents.spec import AgentSpec, Words
from agentos.config.reader import Reader, ReadTable
from agentos.mcp.settings import SERVER_NAME, SERVER_NAME_RULE, TIMEOUT, ServerSettings, Share
from agentos.permissions.levels import LEVELS
from agentos.permissions.rule import PermissionSet
from agentos.sandbox.policy import Network
from agentos.services.http.destination import parse_url
from agentos.services.http.secrets import SecretSettings
from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.values import Limits
from supervisors import Backoff

from .permissions import read_agent_permissions
from .secrets import SOURCE

RESTARTS = {"restart": "permanent", "max_restarts": 5, "restart_window": 60.0}
BACKOFF = Backoff(first=0.0, min=1.0, max=30.0)
OF_PROGRAMS = ("script", "args", "env", "cwd", "code", "workspace", "python", "network", "isolation", "limits")
DEFAULT_LEVEL = "minimal"


@frozen(kw_only=True)
class McpTable:
    """``[mcp]``: the tables of servers are read one by one."""

    servers: object = field(factory=dict)


@frozen(kw_only=True)
class ServerTable:
    """``[mcp.servers.NAME]``: a program, or a ``url``."""

    command: Words | None = None
    script: str | None = None
    args: Sequence[str] | None = None
    url: str | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    code: str | None = None
    workspace: str | None = None
    python: str | None = None
    network: Network | None = None
    isolation: Literal["strict", "standard"] | None = None
    limits: Limits | None = None
    permissions: object = None
    share: Share = "agent"
    sampling: bool = False
    timeout: Annotated[Seconds, Rule(lambda seconds: 1 <= seconds <= 3600, "a duration from 1s to 1h")] = Seconds(
        TIMEOUT
    )


def read_mcp(
    reader: Reader, data: object, known: Mapping[str, PermissionSet], secrets: Mapping[str, SecretSettings]
) -> Mapping[str, ServerSettings]:
    """Read the ``[mcp]`` table: servers by name. ``known`` are the file's permission sets, ``secrets`` its secrets."""
    tables = reader.read(McpTable, data, ("mcp",)).table.servers
    if not isinstance(tables, dict):
        reader.mistakes.append((("mcp", "servers"), "expected a table for each server, [mcp.servers.NAME]"))
        return {}
    found = {}
    for name, table in tables.items():
        read = reader.read(ServerTable, table, ("mcp", "servers", name))
        if not SERVER_NAME.fullmatch(name):
            reader.mistakes.append((read.keys, f"expected {SERVER_NAME_RULE}, got {name!r}"))
        if isinstance(table, dict):
            found[name] = _read_server(reader, read, name, known, secrets)
    return found


def _read_server(
    reader: Reader,
    read: ReadTable,
    name: str,
    known: Mapping[str, PermissionSet],
    secrets: Mapping[str, SecretSettings],
) -> ServerSettings:
    table: ServerTable = read.table
    given = read_agent_permissions(reader, table.permissions, f"mcp.servers.{name}", known, read.keys, secrets)
    permissions = given if given is not None else LEVELS[DEFAULT_LEVEL]
    kinds = [key for key in ("command", "script", "url") if getattr(table, key) is not None or key in read.invalid]
    if len(kinds) != 1:
        reader.add_mistake(read, "expected exactly one of command, script and url")
    if table.url is not None:
        for key in OF_PROGRAMS:
            if getattr(table, key) is not None:
                reader.add_mistake(read, "only a server that is a program has this, and this one has a url", key)
        try:
            parse_url(table.url, "POST")
        except ValueError as error:
            reader.add_mistake(
                read, f"expected https://HOST/PATH, or http:// for a server on this host: {error}", "url"
            )
    sources = _read_sources(reader, read)
    is_program = table.url is None and len(kinds) == 1 and not read.invalid & {"command", "url"}
    return ServerSettings(
        name=name,
        spec=_build_spec(reader, read, name, permissions, sources) if is_program else None,
        url=table.url,
        permissions=permissions,
        secrets=sources,
        share=table.share,
        sampling=table.sampling,
        timeout=table.timeout,
    )


def _read_sources(reader: Reader, read: ReadTable) -> Mapping[str, str]:
    """The variables whose values are secrets: where each of these is."""
    found = {}
    for name, text in (read.table.env or {}).items():
        parts = SOURCE.fullmatch(text)
        if parts is not None:
            found[name] = f"file:{reader.resolve_path(parts['path'])}" if parts["path"] else text
        elif text.startswith(("env:", "file:")):
            reader.add_mistake(read, "expected where the value is, as 'env:NAME' or 'file:PATH'", "env", name)
    return found


def _build_spec(
    reader: Reader, read: ReadTable, name: str, permissions: PermissionSet, sources: Mapping[str, str]
) -> AgentSpec:
    """The agent that an instance is. Blocks."""
    table: ServerTable = read.table
    report = partial(reader.report, read)
    fields = {key: getattr(table, key) for key in ("command", *OF_PROGRAMS)}
    plain = {key: value for key, value in (table.env or {}).items() if key not in sources}
    request = Request(
        **{**fields, "env": plain, "name": name, "permissions": permissions, "network": table.network or "none"},
        **RESTARTS,  # type: ignore[arg-type]
    )
    return replace(build(request, HostPaths(str(reader.directory), declared=True), report), backoff=BACKOFF)
