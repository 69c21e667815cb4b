"""Settings of the export to Prometheus and OpenTelemetry."""

import importlib.util

from attrs import frozen

PROMETHEUS_MISSING = (
    "[metrics] listen needs a package that isn't installed: pip install '.[prometheus]' in AgentOS's repository"
)
OTEL_MISSING = "[otel] endpoint needs packages that aren't installed: pip install '.[otel]' in AgentOS's repository"


@frozen
class MetricsSettings:
    """``[metrics]``: ``listen`` is the address and port of the endpoint for Prometheus, None: there is none.

    ``token_from`` names the source of the token that requests must have: ``env:NAME``, or ``file:PATH`` with an
    absolute path.
    """

    listen: tuple[str, int] | None = None
    token_from: str | None = None

    @property
    def missing(self) -> str | None:
        """What has to be installed for it, if anything."""
        return PROMETHEUS_MISSING if self.listen is not None and not is_installed("prometheus_client") else None


@frozen
class OtelSettings:
    """``[otel]``: ``endpoint`` is the URL of a collector, without a path; None: nothing is traced.

    ``contents``: spans of THINK have question and answer.
    """

    endpoint: str | None = None
    contents: bool = False

    @property
    def missing(self) -> str | None:
        """What has to be installed for it, if anything."""
        needed = "opentelemetry.exporter.otlp.proto.http"
        return OTEL_MISSING if self.endpoint is not None and not is_installed(needed) else None


def is_installed(package: str) -> bool:
    """Whether a package can be imported; its parents are imported for that."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
