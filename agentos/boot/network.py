"""Construction of what connects and listens for agents: HTTP requests, filtered networks, OpenAI endpoints."""

import contextlib
import logging
import os
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from agentos.access.callers import Callers
from agentos.agents.jail import openai_endpoint
from agentos.agents.jail.filtered_network import FilteredNetwork
from agentos.agents.life.life import wait_first
from agentos.config.load import Config
from agentos.kernel.caller import Caller
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.recordings.replay.network import refuse_connections
from agentos.services.http.cassette import Cassette
from agentos.services.http.client import Client
from agentos.services.http.egress import Egress
from agentos.services.http.har import BadHar
from agentos.services.http.secrets import Secrets, UnreadableSecret
from agentos.services.http.settings import trust
from agentos.threads import run_in_thread

from .host import BootError

if TYPE_CHECKING:
    from agentos.gateways.http_proxy.proxy import Proxy

log = logging.getLogger("agentos.kernel")


def read_secrets(config: Config) -> Secrets:
    """The secrets of HTTP requests, read from their files and the environment. Raises :class:`BootError`. Blocks."""
    secrets = Secrets(proxied=config.http.upstream_proxy is not None)
    try:
        secrets.replace(config.http.secrets, secrets.read(config.http.secrets, os.environ))
    except UnreadableSecret as error:
        raise BootError(f"{config.file}: {error}") from None
    return secrets


@frozen
class HttpFiles:
    """What the files of ``[http]`` say: recorded responses to HTTP calls, and authorities instead of the host's."""

    cassette: Cassette | None = None
    authorities: ssl.SSLContext | None = None

    @classmethod
    def read(cls, config: Config) -> "HttpFiles":
        """Read them, before agents begin, which may change them. Raises :class:`BootError`. Blocks."""
        cassette, authorities, named = config.http.cassette, config.http.ca_file, "cassette"
        try:
            found = Cassette.read(Path(cassette)) if cassette is not None else None
            named = f"ca_file: {authorities}"
            return cls(found, trust(authorities) if authorities is not None else None)
        except (BadHar, OSError) as error:
            raise BootError(f"{config.file}: [http] {named}: {error}") from None


@define(eq=False)
class Network:
    """What one kernel sends to the network for agents, and what it serves in their jails."""

    config: Config
    callers: Callers
    connection_limit: ConnectionLimit
    files: HttpFiles
    egress: Egress = field(init=False)
    client: Client = field(init=False)
    _proxy: "Proxy | None" = None

    def __attrs_post_init__(self) -> None:
        self.egress = Egress(self.config.http)
        self.client = Client(self.egress, self.files.cassette, self.files.authorities)
        self.callers.authorizer.observers.append(self.client.judge_again)

    def openai_endpoint(self) -> openai_endpoint.Serve | None:
        """The server for OpenAI-compatible requests; ``None`` if the configuration doesn't enable it."""
        if not self.config.llm.openai_endpoint:
            return None
        from agentos.gateways.endpoint import Endpoints  # hypercorn: 0.1 s and 20 MiB, loaded only if needed

        max_payload = self.config.kernel.max_payload
        endpoints = Endpoints(self.callers.line, self.callers.queue_path, self.connection_limit, max_payload)

        async def serve(listener: socket.socket, caller: Caller, key: str | None) -> None:
            on_host = key is not None  # otherwise it is in a jail's own network
            with self.egress.refuse(listener) if on_host else contextlib.nullcontext():
                await endpoints.serve(listener, caller, key)

        return serve

    async def serve_filtered(self, network: FilteredNetwork, caller: Caller) -> None:
        """Serve the filtered network of one life of an agent. The proxy is loaded for the first one: 0.05 s.

        With a cassette for HTTP calls each connection is refused: none is recorded.
        """
        if caller.replayed is not None:
            replayed = caller.replayed
            await wait_first(partial(refuse_connections, network, replayed.note_connection), replayed.live.wait)
        if self.files.cassette is not None:
            log.warning("%s: [http] cassette has no connections: its program's own are refused", caller.name)
            await refuse_connections(network, lambda: None)
        if self._proxy is None:
            proxy = await run_in_thread(_load_proxy)
            callers, ask_seconds = self.callers, self.config.approvals.timeout
            self._proxy = self._proxy or proxy(
                self.egress,
                callers.authorizer,
                callers.approvals,
                self.connection_limit,
                ask_seconds,
                callers.charge_http,
            )
        await self._proxy.serve(network, caller)


def _load_proxy() -> "type[Proxy]":
    from agentos.gateways.http_proxy.proxy import Proxy

    return Proxy
