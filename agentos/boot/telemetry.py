"""Construction of the Prometheus endpoint and the OpenTelemetry export, if the configuration asks for them."""

import logging
import os
import socket
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from agentos.access.callers import Callers
from agentos.config.load import Config
from agentos.http.users import FindUser
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import BACKLOG, ConnectionLimit
from agentos.services.http.addresses import format_authority
from agentos.services.http.egress import Egress
from agentos.services.http.secrets import read_source
from agentos.services.metrics.sampler import Sampler
from agentos.services.publisher import Events

from .host import BootError

log = logging.getLogger("agentos.kernel")


@define(eq=False)
class Telemetry:
    """The parts of the kernel that metrics and traces are made from. Call :meth:`open` before :meth:`serve`."""

    config: Config
    sampler: Sampler
    callers: Callers
    egress: Egress
    connection_limit: ConnectionLimit
    events: Events
    find_user: FindUser
    _services: list[Callable[[], Awaitable[None]]] = field(factory=list)

    def open(self) -> None:
        """Listen, and observe calls and events, before any call is served. Raises :class:`BootError`. Blocks."""
        for missing in (self.config.metrics.missing, self.config.otel.missing):
            if missing is not None:
                raise BootError(f"{self.config.file}: {missing}")
        if self.config.otel.endpoint is not None:
            self._open_traces(self.config.otel.endpoint)
        if self.config.metrics.listen is not None:
            self._open_metrics(*self.config.metrics.listen)

    def _open_traces(self, endpoint: str) -> None:
        from agentos.telemetry.otel import TraceExporter  # 0.4 s
        from agentos.telemetry.spans import Spans

        spans = Spans(self.callers.registry, self.callers.line, self.config.otel.contents)
        self.callers.tables.observer = spans
        self.events.subscribe(spans.take_event)
        self._services.append(TraceExporter(spans, endpoint).serve)

    def _open_metrics(self, host: str, port: int) -> None:
        from agentos.telemetry.metrics_endpoint import Exposition, MetricsEndpoint  # hypercorn and the library: 0.15 s
        from agentos.telemetry.snapshot import Source

        token, token_from = None, self.config.metrics.token_from
        if token_from is not None:
            try:
                token = read_source(token_from, os.environ)
            except ValueError as error:
                raise BootError(f"{self.config.file}: [metrics] token_from: {error}") from None
        listener = listen_tcp(host, port)
        caller = Caller(0, "guest", "the metrics endpoint", Table(()), self.callers.authorizer, self.callers.audit)
        exposition = Exposition(Source(self.sampler, self.callers.registry, self.callers, self.callers.line).take)
        endpoint = MetricsEndpoint(listener, self.connection_limit, caller, exposition, self.find_user, token)

        async def serve() -> None:
            with listener, self.egress.refuse(listener):
                await endpoint.serve()

        self._services.append(serve)
        log.info("metrics for Prometheus at http://%s/metrics", format_authority(host, port))

    async def serve(self) -> None:
        """Serve until cancelled; return at once if the configuration asks for nothing."""
        async with trio.open_nursery() as nursery:
            for service in self._services:
                nursery.start_soon(service)


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; raises :class:`BootError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BootError(f"can't listen on {format_authority(host, port)} for [metrics]: {error.strerror}") from None
    listener.setblocking(False)
    return listener
