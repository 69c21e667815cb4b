"""Construction of what tells monitoring programs about the kernel, as far as the configuration asks for it."""

import logging
import os
import socket
from collections.abc import Awaitable, Callable

from attrs import define, field

from .access.callers import Callers
from .agents.registry import Registry
from .config.load import Config
from .host_setup import BootError
from .kernel.caller import Caller
from .kernel.listener import BACKLOG, ConnectionLimit
from .kernel.table import Table
from .llm.line import Line
from .services.http.addresses import format_authority
from .services.http.egress import Egress
from .services.http.secrets import read_source
from .services.metrics.sampler import Sampler

log = logging.getLogger("agentos.kernel")


@define(eq=False)
class Telemetry:
    """What a running kernel is asked about. :meth:`open` comes before :meth:`serve`."""

    config: Config
    sampler: Sampler
    registry: Registry
    callers: Callers
    line: Line
    egress: Egress
    connection_limit: ConnectionLimit
    _serve: Callable[[], Awaitable[None]] | None = None
    _listener: socket.socket | None = field(default=None)

    def open(self) -> None:
        """Listen; raises :class:`BootError`. Blocks."""
        settings = self.config.metrics
        if settings.listen is None:
            return
        if settings.missing is not None:
            raise BootError(f"{self.config.file}: {settings.missing}")
        from .telemetry.metrics_endpoint import Exposition, MetricsEndpoint  # hypercorn and the library: 0.15 s
        from .telemetry.snapshot import Source

        token = None
        if settings.token_from is not None:
            try:
                token = read_source(settings.token_from, os.environ)
            except ValueError as error:
                raise BootError(f"{self.config.file}: [metrics] token_from: {error}") from None
        self._listener = listen_tcp(*settings.listen)
        caller = Caller(0, "guest", "the metrics endpoint", Table(()), self.callers.authorizer, self.callers.audit)
        exposition = Exposition(Source(self.sampler, self.registry, self.callers, self.line).take)
        self._serve = MetricsEndpoint(self._listener, self.connection_limit, caller, exposition, token).serve
        log.info("metrics for Prometheus at http://%s/metrics", format_authority(*settings.listen))

    async def serve(self) -> None:
        """Serve until cancelled; return at once if the configuration asks for nothing."""
        if self._listener is not None and self._serve is not None:
            with self._listener, self.egress.refuse(self._listener):
                await self._serve()


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; raises :class:`BootError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BootError(f"can't listen on {format_authority(host, port)} for [metrics]: {error.strerror}") from None
    listener.setblocking(False)
    return listener
